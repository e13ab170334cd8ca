// A client of Seedbed in one file: observations up, actions down (docs/wire.md, protocol 2).
//
// For Unity 2021 and later and .NET (.NET Standard 2.1, C# 8); no package is needed. Tests run it under Mono, which has
// no TLS 1.3: there it goes to loopback, to a socket file, or in plain text. A client is used by one thread.
//
//     using (var run = new SeedbedClient("learner:7700", "FINGERPRINT.TOKEN", 2))
//     {
//         float[] observation = …, reward = …; byte[] terminated = …, truncated = …, first = …; // rows one after another
//         for (int lane = 0; lane < run.Lanes; lane++)
//             run.Send(lane, new Array[] { observation, reward, terminated, truncated, first });
//         while (true)
//         {
//             int lane = run.Receive();                 // waits; SeedbedException at the end, with the reason
//             var action = new int[run.Rows];
//             run.CopyAction(lane, action);
//             …                                         // step the lane's environments
//             run.Send(lane, …);
//         }
//     }

using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Globalization;
using System.IO;
using System.Net.Security;
using System.Net.Sockets;
using System.Security.Authentication;
using System.Security.Cryptography;
using System.Text;
using System.Threading;

/// <summary>An end of the conversation, with the server's reason.</summary>
public sealed class SeedbedException : Exception
{
    /// <summary>True if the server says no for good; false if it may be tried again.</summary>
    public bool Refused { get; }

    /// <summary>True if the run is over, so that there is no need to come again.</summary>
    public bool Over => Message == "the run is over";

    public SeedbedException(string message, bool refused = false) : base(message) { Refused = refused; }
}

/// <summary>A conversation with a learner or with a served policy.</summary>
public sealed class SeedbedClient : IDisposable
{
    private const int Protocol = 2, HeaderBytes = 16, MostQuestion = 1 << 20, MostReason = 2048, MostLanes = 64, MostFields = 256;
    private const long MostMessage = 256L << 20;
    private const SslProtocols Tls13 = (SslProtocols)12288; // not named in .NET Standard 2.1
    private const int Ask = 1, Answer = 2, No = 3, Opened = 4, Step = 5, Reply = 6, Closed = 7;
    private const int Challenge = 8, Proof = 9, Admitted = 10;

    private sealed class Layout
    {
        public readonly List<long> Offsets = new List<long>(), Bytes = new List<long>();
        public readonly List<string> Dtypes = new List<string>();
        public long Total;

        /// <summary>The layout with these fields, each [[SIZE, ...], "DTYPE"]; FormatException if they are none.</summary>
        public static Layout Of(List<string> fields)
        {
            var layout = new Layout();
            if (fields.Count == 0 || fields.Count > MostFields) throw new FormatException(fields.Count + " arrays");
            foreach (string field in fields)
            {
                List<string> pair = Json.Items(field);
                if (pair.Count != 2) throw new FormatException("an array is sizes and a dtype");
                string dtype = pair[1].Trim('"');
                long bytes = ItemSize(dtype);
                foreach (string size in Json.Items(pair[0]))
                {
                    bytes = checked(bytes * long.Parse(size, NumberStyles.None, CultureInfo.InvariantCulture));
                    if (bytes > MostMessage) throw new FormatException("it is too large");
                }
                layout.Dtypes.Add(dtype);
                layout.Bytes.Add(bytes);
                layout.Offsets.Add(layout.Total);
                layout.Total += (bytes + 63) / 64 * 64;
                if (layout.Total > MostMessage) throw new FormatException("it is too large");
            }
            return layout;
        }

        private static long ItemSize(string dtype)
        {
            switch (dtype)
            {
                case "bool": case "int8": case "uint8": return 1;
                case "int16": case "uint16": case "float16": return 2;
                case "int32": case "uint32": case "float32": return 4;
                case "int64": case "uint64": case "float64": case "complex64": return 8;
                case "complex128": return 16;
                default: throw new FormatException("this client does not know the dtype " + dtype);
            }
        }
    }

    private sealed class Lane
    {
        public Layout Up, Down;
        public byte[] StepBytes, ReplyBytes;
        public bool Owed;
        public long Seed;
    }

    private readonly Socket socket;
    private readonly List<Lane> lanes = new List<Lane>();
    private Stream stream;
    private bool over;

    /// <summary>Number of lanes, which do not wait for one another.</summary>
    public int Lanes => lanes.Count;

    /// <summary>Environments of each lane.</summary>
    public int Rows { get; private set; }

    /// <summary>The server's spec of the world, as JSON.</summary>
    public string Spec { get; private set; }

    /// <summary>Joins.</summary>
    /// <param name="address">HOST:PORT or unix:PATH, with or without socket: in front.</param>
    /// <param name="join">TOKEN or FINGERPRINT.TOKEN, as the server printed it.</param>
    /// <param name="environments">1 or an even number for a learner; 0: as many as its own actors have.</param>
    /// <param name="spec">Spec of the world as JSON; null: the one that the server needs.</param>
    /// <param name="insecure">Plain text over the network, where the server has --insecure.</param>
    /// <param name="seconds">Time to wait for the server to appear.</param>
    public SeedbedClient(string address, string join, int environments = 0, string spec = null, bool insecure = false,
                         double seconds = 10)
    {
        if (!BitConverter.IsLittleEndian) throw new SeedbedException("this client is for little-endian machines", true);
        string place = address.StartsWith("socket:", StringComparison.Ordinal) ? address.Substring(7) : address;
        int dot = join.LastIndexOf('.');
        string token = join.Substring(dot + 1), fingerprint = dot < 0 ? "" : join.Substring(0, dot);
        bool local = place.StartsWith("unix:", StringComparison.Ordinal);
        bool encrypted = !local && (fingerprint != "" || !(IsLoopback(place) || insecure));
        socket = Dial(place, local, seconds);
        try
        {
            stream = new NetworkStream(socket, false);
            byte[] binding = encrypted ? Encrypt(fingerprint) : new byte[0];
            if (!local) Prove(token, binding);
            Open(local ? token : "", environments, spec);
        }
        catch (Exception error)
        {
            Dispose();
            if (error is IOException || error is SocketException || error is AuthenticationException)
                throw new SeedbedException("the server is gone: " + error.Message);
            if (IsNonsense(error)) throw new SeedbedException("the server's answer makes no sense: " + error.Message);
            throw;
        }
    }

    private static bool IsNonsense(Exception error) =>
        error is FormatException || error is OverflowException || error is ArgumentException;

    /// <summary>A seed for the environments of a lane.</summary>
    public long Seed(int lane) => lanes[lane].Seed;

    /// <summary>
    /// Sends a step: the leaves of the observation in the order of sorted keys, reward (float[]), terminated, truncated and
    /// first (byte[] or bool[]). The arrays may be reused when it returns.
    /// </summary>
    public void Send(int lane, IReadOnlyList<Array> arrays)
    {
        Lane to = lanes[lane];
        if (to.Owed) throw new InvalidOperationException("lane " + lane + " waits for its actions: receive them first");
        if (arrays.Count != to.Up.Bytes.Count)
            throw new ArgumentException(arrays.Count + " arrays, the layout has " + to.Up.Bytes.Count);
        for (int field = 0; field < arrays.Count; field++)
        {
            if (Buffer.ByteLength(arrays[field]) != to.Up.Bytes[field])
                throw new ArgumentException("array " + field + " has " + Buffer.ByteLength(arrays[field]) + " bytes, " +
                                            to.Up.Dtypes[field] + " of " + to.Up.Bytes[field] + " are needed");
            Buffer.BlockCopy(arrays[field], 0, to.StepBytes, (int)to.Up.Offsets[field], (int)to.Up.Bytes[field]);
        }
        to.Owed = true;
        Say(Step, lane, to.StepBytes);
    }

    /// <summary>Waits for actions, and returns the lane that they are for.</summary>
    public int Receive()
    {
        Hear(out int kind, out int number, out long length);
        if (kind != Reply || number >= lanes.Count || !lanes[number].Owed || length != lanes[number].Down.Total)
            throw Ended("a frame of kind " + kind + " for lane " + number + " out of turn");
        Fill(lanes[number].ReplyBytes, (int)length);
        lanes[number].Owed = false;
        return number;
    }

    /// <summary>Copies the actions that a lane has received: int[] or float[], as the spec says.</summary>
    public void CopyAction(int lane, Array action)
    {
        Layout down = lanes[lane].Down;
        if (Buffer.ByteLength(action) != down.Bytes[0])
            throw new ArgumentException("actions are " + down.Bytes[0] + " bytes of " + down.Dtypes[0]);
        Buffer.BlockCopy(lanes[lane].ReplyBytes, 0, action, 0, (int)down.Bytes[0]);
    }

    /// <summary>Ends the conversation.</summary>
    public void Dispose()
    {
        try
        {
            if (!over && lanes.Count > 0) Say(Closed, 0, new byte[0]);
        }
        catch (SeedbedException) { }
        over = true;
        stream?.Dispose();
        socket?.Dispose();
    }

    // -- joining --

    private static bool IsLoopback(string place) =>
        place.StartsWith("127.", StringComparison.Ordinal) || place.StartsWith("localhost:", StringComparison.Ordinal) ||
        place.StartsWith("[::1]:", StringComparison.Ordinal);

    private static Socket Dial(string place, bool local, double seconds)
    {
        Stopwatch waited = Stopwatch.StartNew();
        int colon = place.LastIndexOf(':'), port = 0;
        if (!local && (colon < 1 || !int.TryParse(place.Substring(colon + 1), out port) || port < 1 || port > 65535))
            throw new SeedbedException("the address is " + place + ", and has to be HOST:PORT or unix:PATH", true);
        while (true)
        {
            Socket made = local ? new Socket(AddressFamily.Unix, SocketType.Stream, ProtocolType.Unspecified)
                                : new Socket(SocketType.Stream, ProtocolType.Tcp);
            string reason = "it does not answer";
            try
            {
                if (local)
                {
                    made.Connect(new UnixDomainSocketEndPoint(place.Substring(5)));
                    return made;
                }
                // A machine that drops packets says nothing for minutes.
                IAsyncResult dialled = made.BeginConnect(place.Substring(0, colon).Trim('[', ']'), port, null, null);
                double left = Math.Max(0.1, seconds - waited.Elapsed.TotalSeconds);
                if (dialled.AsyncWaitHandle.WaitOne(TimeSpan.FromSeconds(left)))
                {
                    made.EndConnect(dialled);
                    made.NoDelay = true;
                    made.SetSocketOption(SocketOptionLevel.Socket, SocketOptionName.KeepAlive, true);
                    return made;
                }
            }
            catch (SocketException error) { reason = error.Message; }
            made.Dispose();
            if (waited.Elapsed.TotalSeconds > seconds)
                throw new SeedbedException("nothing listens at " + place + ": " + reason);
            Thread.Sleep(100);
        }
    }

    private byte[] Encrypt(string fingerprint)
    {
        byte[] shown = null;
        // The fingerprint is what counts: names and dates of the run's own certificate mean nothing.
        var secured = new SslStream(stream, false, (sender, certificate, chain, errors) =>
        {
            using (SHA256 sha = SHA256.Create()) shown = sha.ComputeHash(certificate.GetRawCertData());
            return fingerprint == "" || Hex(shown) == fingerprint;
        });
        stream = secured;
        try
        {
            secured.AuthenticateAsClient("seedbed", null, Tls13, false);
        }
        catch (Exception error) when (error is AuthenticationException || error is IOException)
        {
            throw new SeedbedException(shown != null && fingerprint != "" && Hex(shown) != fingerprint
                ? "the certificate is another one: copy the run's line again"
                : "no encrypted connection: is there TLS 1.3 on this system (Mono has none), and does the server " +
                  "speak it? " + error.Message, true);
        }
        return shown;
    }

    private void Prove(string token, byte[] binding)
    {
        byte[] proof = new byte[88], noise = new byte[16];
        Array.Copy(Expect(Challenge, 40), proof, 40);
        using (RandomNumberGenerator random = RandomNumberGenerator.Create()) random.GetBytes(noise);
        Array.Copy(noise, 0, proof, 40, 16);
        Array.Copy(Mac(token, "client", binding, proof), 0, proof, 56, 32);
        Say(Proof, 0, proof);
        if (!CryptographicOperations.FixedTimeEquals(Expect(Admitted, 32), Mac(token, "server", binding, proof)))
            throw Ended("the server does not know the token: somebody in between, or another run");
    }

    private static byte[] Mac(string token, string side, byte[] binding, byte[] proof)
    {
        using (var known = new MemoryStream())
        using (var hmac = new HMACSHA256(Encoding.ASCII.GetBytes(token)))
        {
            byte[] head = Encoding.ASCII.GetBytes("seedbed|" + side + "|");
            known.Write(head, 0, head.Length);
            known.Write(binding, 0, binding.Length);
            known.WriteByte((byte)'|');
            known.Write(proof, 0, 56);
            return hmac.ComputeHash(known.ToArray());
        }
    }

    private void Open(string token, int environments, string spec)
    {
        string envs = environments == 0 ? "null" : environments.ToString();
        string told = Question("{\"kind\": \"join\", \"protocol\": 2, \"token\": \"" + token + "\", \"envs\": " + envs + "}");
        if (Json.Entry(told, "policy") != null)
            throw Ended("this learner has actors run the policy: train with --arch seed");
        Rows = int.Parse(Json.Entry(told, "rows") ?? "0");
        Spec = Json.Entry(told, "spec");
        foreach (string seed in Json.Items(Json.Entry(told, "seeds") ?? "[]")) lanes.Add(new Lane { Seed = long.Parse(seed) });
        if (Rows < 1 || lanes.Count < 1 || lanes.Count > MostLanes) throw Ended("an answer without rows or seeds");
        Question("{\"kind\": \"ready\", \"spec\": " + (spec ?? Spec) + "}");
        if (lanes[0].Up == null) throw Ended("the server has opened no lane");
    }

    private string Question(string question)
    {
        Say(Ask, 0, Encoding.UTF8.GetBytes(question));
        while (true)
        {
            Hear(out int kind, out _, out long length);
            if ((kind != Answer && kind != Opened) || length > MostQuestion)
                throw Ended("a frame of kind " + kind + " out of turn: does the server want a token?");
            byte[] body = new byte[length];
            Fill(body, body.Length);
            string text = Encoding.UTF8.GetString(body);
            if (kind == Answer) return text;
            ReadTerms(text);
        }
    }

    private void ReadTerms(string terms)
    {
        List<string> told = Json.Items(Json.Entry(terms, "lanes") ?? "[]");
        if (told.Count != lanes.Count) throw Ended(told.Count + " lanes opened, and " + lanes.Count + " seeds given");
        for (int number = 0; number < told.Count; number++)
        {
            Lane lane = lanes[number];
            lane.Up = ReadLayout(Json.Entry(told[number], "up"));
            lane.Down = ReadLayout(Json.Entry(told[number], "down"));
            if (lane.Down.Bytes.Count != 1) throw Ended("a reply of " + lane.Down.Bytes.Count + " arrays");
            lane.StepBytes = new byte[lane.Up.Total];
            lane.ReplyBytes = new byte[lane.Down.Total];
        }
    }

    private Layout ReadLayout(string text)
    {
        try
        {
            return Layout.Of(Json.Items(text ?? "[]"));
        }
        catch (Exception error) when (IsNonsense(error))
        {
            throw Ended("a layout that is none: " + error.Message);
        }
    }
    // -- frames --

    private void Say(int kind, int lane, byte[] body)
    {
        byte[] header = new byte[HeaderBytes];
        header[0] = (byte)'S';
        header[1] = (byte)'d';
        header[2] = Protocol;
        header[3] = (byte)kind;
        BitConverter.GetBytes(lane).CopyTo(header, 4);
        BitConverter.GetBytes((long)body.Length).CopyTo(header, 8);
        try
        {
            stream.Write(header, 0, header.Length);
            stream.Write(body, 0, body.Length);
        }
        catch (IOException error)
        {
            throw Ended("the server is gone: " + error.Message);
        }
    }

    private void Hear(out int kind, out int lane, out long length)
    {
        byte[] header = new byte[HeaderBytes];
        Fill(header, HeaderBytes);
        if (header[0] != 'S' || header[1] != 'd') throw Ended("the other side is no Seedbed one");
        if (header[2] != Protocol) throw Ended("the other side speaks protocol " + header[2] + ", this one " + Protocol);
        kind = header[3];
        lane = BitConverter.ToInt32(header, 4);
        length = BitConverter.ToInt64(header, 8);
        if (lane < 0 || lane >= MostLanes || length < 0) throw Ended("a header that is none");
        if (kind != No && kind != Closed) return;
        byte[] reason = new byte[Math.Min(length, MostReason)];
        Fill(reason, reason.Length);
        over = true;
        throw new SeedbedException(Encoding.UTF8.GetString(reason), kind == No);
    }

    private byte[] Expect(int kind, int bytes)
    {
        Hear(out int found, out _, out long length);
        if (found != kind || length != bytes) throw Ended("a frame of kind " + found + " in place of " + kind);
        byte[] body = new byte[bytes];
        Fill(body, bytes);
        return body;
    }

    private void Fill(byte[] buffer, int count)
    {
        for (int got = 0; got < count;)
        {
            int read;
            try
            {
                read = stream.Read(buffer, got, count - got);
            }
            catch (IOException error)
            {
                throw Ended("the server is gone: " + error.Message);
            }
            if (read == 0) throw Ended("the server is gone");
            got += read;
        }
    }

    private SeedbedException Ended(string reason)
    {
        over = true;
        return new SeedbedException(reason);
    }

    private static string Hex(byte[] bytes) => BitConverter.ToString(bytes).Replace("-", "").ToLowerInvariant();

    /// <summary>The little of JSON that is read: values are found and cut out as text.</summary>
    private static class Json
    {
        public static string Entry(string text, string name)
        {
            int at = Space(text, 0);
            if (at >= text.Length || text[at] != '{') return null;
            at = Space(text, at + 1);
            while (at < text.Length && text[at] == '"')
            {
                int end = Skip(text, at), value = Space(text, Space(text, end) + 1), after = Skip(text, value);
                if (text.Substring(at + 1, end - at - 2) == name) return text.Substring(value, after - value);
                at = Space(text, Space(text, after) + 1);
            }
            return null;
        }

        public static List<string> Items(string text)
        {
            var found = new List<string>();
            int at = Space(text, 0);
            if (at >= text.Length || text[at] != '[') throw new FormatException("a list is missing");
            at = Space(text, at + 1);
            while (at < text.Length && text[at] != ']')
            {
                int end = Skip(text, at);
                found.Add(text.Substring(at, end - at));
                at = Space(text, end);
                if (at < text.Length && text[at] == ',') at = Space(text, at + 1);
            }
            if (at >= text.Length) throw new FormatException("a list has no end");
            return found;
        }

        private static int Space(string text, int at)
        {
            while (at < text.Length && " \t\r\n".IndexOf(text[at]) >= 0) at++;
            return at;
        }

        private static int Skip(string text, int at)
        {
            for (int depth = 0; at < text.Length; at++)
            {
                char sign = text[at];
                if (sign == '"')
                {
                    for (at++; at < text.Length && text[at] != '"'; at++)
                        if (text[at] == '\\') at++;
                }
                else if (sign == '{' || sign == '[') depth++;
                else if (sign == '}' || sign == ']') depth--;
                else if (depth == 0)
                {
                    while (at < text.Length && ",]} \t\r\n".IndexOf(text[at]) < 0) at++;
                    return at;
                }
                if (depth == 0) return at + 1;
            }
            throw new SeedbedException("an answer that is cut off");
        }
    }
}
