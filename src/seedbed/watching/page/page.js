"use strict";
// Everything that a run's files say is put into the page as text, never as markup.

const COLOURS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf"];
const EVERY_MS = 2000;
let chosen = location.hash.slice(1) || null;

const byId = (id) => document.getElementById(id);

function element(name, attributes = {}, text = null) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

function svg(name, attributes = {}, text = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

function short(value) {
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)}${letter}`;
  }
  return `${+value.toPrecision(3)}`;
}

const bytes = (value) => `${short(value).replace(/[GMk]?$/, " $&")}B/s`;
const figure = (value, digits = 0) =>
  value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: digits });

// -- curves ---------------------------------------------------------------------------------------

function ticks(low, high) {
  const step = 10 ** Math.floor(Math.log10((high - low) / 2 || 1));
  const size = [1, 2, 5, 10].map((n) => n * step).find((each) => (high - low) / each <= 6);
  const found = [];
  for (let at = Math.ceil(low / size) * size; at <= high + size * 1e-9; at += size) found.push(at);
  return found;
}

function chart(groups, axis, label) {
  const [width, height, left, right, top, bottom] = [520, 300, 48, 20, 10, 36];
  const every = groups.flatMap((group) => group[axis].lines.flat());
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  if (!every.length) {
    drawing.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no episode has ended yet"));
    return drawing;
  }
  const xs = every.map((point) => point[0]), ys = every.map((point) => point[1]);
  const least = (values) => values.reduce((a, b) => Math.min(a, b)), most = (values) => values.reduce((a, b) => Math.max(a, b));
  const [x0, x1] = [Math.min(0, least(xs)), most(xs) || 1];
  let [y0, y1] = [least(ys), most(ys)];
  if (y0 === y1) [y0, y1] = [y0 - 1, y1 + 1];
  const px = (x) => left + ((x - x0) / (x1 - x0)) * (width - left - right);
  const py = (y) => height - bottom - ((y - y0) / (y1 - y0)) * (height - top - bottom);
  for (const y of ticks(y0, y1)) {
    drawing.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: py(y), y2: py(y) }));
    drawing.append(svg("text", { x: left - 6, y: py(y) + 4, "text-anchor": "end" }, short(y)));
  }
  for (const x of ticks(x0, x1)) {
    drawing.append(svg("text", { x: px(x), y: height - bottom + 16, "text-anchor": "middle" }, short(x)));
  }
  drawing.append(svg("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, label));
  const path = (points) => points.map(([x, y], n) => `${n ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}`).join("");
  groups.forEach((group, number) => {
    const stroke = COLOURS[number % COLOURS.length], middle = group[axis].middle;
    const many = group[axis].lines.length > 1;
    if (middle.length) {
      const band = [...middle.map(([x, , low]) => [x, low]), ...middle.map(([x, , , high]) => [x, high]).reverse()];
      drawing.append(svg("path", { d: `${path(band)}Z`, fill: stroke, opacity: 0.2, class: "band" }));
      drawing.append(svg("path", { d: path(middle), stroke, fill: "none", "stroke-width": 2.2, class: "middle" }));
    }
    for (const line of group[axis].lines) {
      const thin = { "stroke-width": many ? 0.7 : 2, opacity: many ? 0.5 : 1 };
      drawing.append(svg("path", { d: path(line), stroke, fill: "none", class: "line", ...thin }));
    }
  });
  return drawing;
}

function showCurves({ env, groups }) {
  byId("of").textContent = env ? `of ${env}` : "of all environments";
  byId("curves").replaceChildren(
    chart(groups, "frames", "environment frames"), chart(groups, "seconds", "seconds of training"));
  byId("legend").replaceChildren(...groups.map((group, number) => {
    const entry = element("span", {}, `${group.name} (${group.frames.lines.length})`);
    entry.prepend(element("i", { style: `background:${COLOURS[number % COLOURS.length]}` }));
    return entry;
  }));
}

// -- runs -----------------------------------------------------------------------------------------

function showRuns(runs) {
  byId("runs").tBodies[0].replaceChildren(...runs.map((run) => {
    const line = element("tr", { class: run.id === chosen ? "chosen" : "", "data-run": run.id });
    const path = element("td");
    path.append(element("bdi", {}, run.name)); // left to right, also where its end is shown
    line.append(path);
    for (const text of [run.env, run.agent, run.arch]) line.append(element("td", {}, text));
    line.append(element("td", { class: run.state }, run.state));
    for (const text of [figure(run.steps), figure(run.steps_per_second), figure(run.mean_return, 2)]) {
      line.append(element("td", { class: "number" }, text));
    }
    line.append(element("td", {}, run.bottleneck ? run.bottleneck[0] : ""));
    line.addEventListener("click", () => { chosen = run.id; location.hash = run.id; refresh(); });
    return line;
  }));
}

// -- one run --------------------------------------------------------------------------------------

function depths(program) {
  const found = { [program.head]: 0 };
  for (let round = 0; round < program.roles.length; round++) {
    for (const role of program.roles) {
      const below = role.dials.map((edge) => found[edge.to]).filter((depth) => depth !== undefined);
      if (!(role.name in found) && below.length) found[role.name] = 1 + Math.min(...below);
    }
  }
  for (const role of program.roles) if (!(role.name in found)) found[role.name] = 1;
  return found;
}

function drawProgram(program, traffic) {
  const depth = depths(program), columns = Math.max(...Object.values(depth)) + 1;
  const rows = {}, places = {}, [wide, high, gap, line] = [150, 46, 300, 130];
  for (const role of program.roles) {
    const row = (rows[depth[role.name]] = (rows[depth[role.name]] ?? -1) + 1);
    places[role.name] = [10 + (columns - 1 - depth[role.name]) * (wide + gap), 14 + row * line];
  }
  const lines = {};
  for (const each of traffic) (lines[[each.from, each.to].sort().join("\n")] ??= []).push(each);
  const most = Math.max(0, ...Object.values(lines).map((each) => each.length));
  const height = 30 + Math.max(...Object.values(rows)) * line + Math.max(high, 16 * most + 30);
  const width = columns * (wide + gap) - gap + 20;
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, style: `max-width:${width}px`, role: "img" });
  for (const role of program.roles) for (const edge of role.dials) {
    const [from, to] = [places[role.name], places[edge.to]];
    if (!to || role.name === edge.to) continue;
    const ends = { x1: from[0] + wide, y1: from[1] + high / 2, x2: to[0], y2: to[1] + high / 2 };
    drawing.append(svg("line", { class: "edge", ...ends }));
    (lines[[role.name, edge.to].sort().join("\n")] ?? []).forEach((each, number) => {
      const arrow = each.from === role.name ? "→" : "←";
      const rate = each.bytes_per_second === null ? "" : ` ${bytes(each.bytes_per_second)}`;
      const at = { x: (ends.x1 + ends.x2) / 2, y: (ends.y1 + ends.y2) / 2 + 16 + 15 * number };
      drawing.append(svg("text", { ...at, "text-anchor": "middle", class: "rate" }, `${arrow}${rate} ${each.what}`));
    });
  }
  for (const role of program.roles) {
    const [x, y] = places[role.name];
    drawing.append(svg("rect", { class: "role", x, y, width: wide, height: high, rx: 5 }));
    const text = role.count > 1 ? `${role.count} × ${role.name}` : role.name;
    drawing.append(svg("text", { class: "role-name", x: x + wide / 2, y: y + 28, "text-anchor": "middle" }, text));
  }
  return drawing;
}

function showRun(run) {
  byId("one").hidden = false;
  byId("name").textContent = `${run.name} · ${run.env} · ${run.agent} · ${run.arch}`;
  byId("state").textContent = run.why ? `${run.state}: ${run.why}` : run.state;
  byId("state").className = run.state;
  byId("figures").replaceChildren(...run.figures.map(([label, value]) => {
    const entry = element("span", {}, `${label} `);
    entry.append(element("strong", {}, value));
    return entry;
  }));
  byId("shares").replaceChildren(...Object.entries(run.shares).map(([part, share]) => {
    const entry = element("div", { class: "share" });
    const bar = element("b");
    bar.append(element("i", { style: `width:${100 * share}%` }));
    entry.append(element("span", { class: "dim" }, part), bar, element("span", {}, `${Math.round(100 * share)}%`));
    return entry;
  }));
  byId("bottleneck").replaceChildren(...(run.bottleneck
    ? ["bottleneck: ", element("b", {}, run.bottleneck[0]), `: ${run.bottleneck[1]}`] : []));
  byId("program").replaceChildren(...(run.program ? [drawProgram(run.program, run.traffic)] : []));
  const machines = Object.entries(run.machines);
  byId("machines").textContent = machines.length > 1 ? machines.map(([machine, roles]) =>
    `${machine}: ${Object.entries(roles).map(([role, count]) => `${count} ${role}${count > 1 ? "s" : ""}`).join(", ")}`,
  ).join(" · ") : "";
  byId("instances").tBodies[0].replaceChildren(...run.instances.map((each) => {
    const line = element("tr");
    line.append(element("td", {}, `${each.role} ${each.index}`), element("td", { class: each.state }, each.state));
    line.append(element("td", { class: "dim" }, machines.length > 1 ? each.machine || "no machine yet" : ""));
    line.append(element("td", {}, each.restarts ? `${each.restarts} restarts` : ""));
    line.append(element("td", { class: "fault" }, each.fault ?? ""));
    return line;
  }));
  byId("faults-head").hidden = !run.faults.length;
  byId("faults").textContent = run.faults.map((each) => `${each.time} ${each.level} ${each.text}`).join("\n");
  const video = byId("video"), source = run.video ? `video?run=${encodeURIComponent(run.id)}` : "";
  video.hidden = !source;
  if (source && video.getAttribute("src") !== source) video.setAttribute("src", source);
  if (!source) video.removeAttribute("src");
}

// -- the loop -------------------------------------------------------------------------------------

async function get(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}

async function refresh() {
  try {
    const found = await get("runs.json");
    if (!found.runs.some((run) => run.id === chosen)) {
      const first = found.runs.find((run) => run.state === "running") ?? found.runs[0];
      chosen = first ? first.id : null;
    }
    showRuns(found.runs);
    const by = byId("by");
    if ([...by.options].map((option) => option.value).join() !== found.settings.join()) {
      const before = by.value || "agent";
      by.replaceChildren(...found.settings.map((name) => element("option", { value: name }, name)));
      by.value = found.settings.includes(before) ? before : found.settings[0] ?? "";
    }
    if (chosen !== null) {
      const run = `run=${encodeURIComponent(chosen)}`;
      showCurves(await get(`curves.json?by=${encodeURIComponent(by.value)}&${run}`));
      showRun(await get(`run.json?${run}`));
    }
    byId("moment").textContent = new Date().toLocaleTimeString();
    byId("moment").className = "";
  } catch (error) {
    byId("moment").textContent = `no answer: ${error.message}`;
    byId("moment").className = "fault";
  }
}

async function go() {
  await refresh();
  setTimeout(go, EVERY_MS);
}

byId("by").addEventListener("change", refresh);
go();
