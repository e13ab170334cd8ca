import json
import threading

import numpy as np
import pytest

from seedbed.metrics.meters import Episodes, EpisodesOfSeveral, Rate, Ratio, Share, SteadyRate, Tally


class FakeClock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rate_forgets_what_is_older_than_its_window() -> None:
    clock = FakeClock()
    rate = Rate(10.0, clock)
    assert rate.per_second == 0.0
    for second in range(60):
        clock.now = 100.0 + second
        rate.observe(10 * second if second < 30 else 300 + 50 * (second - 30))
    assert rate.per_second == pytest.approx(50.0)


def test_rate_falls_to_nothing_when_the_total_stands_still() -> None:
    clock = FakeClock()
    rate = Rate(5.0, clock)
    for second in range(20):
        clock.now += 1
        rate.observe(min(second, 3) * 10)
    assert rate.per_second == 0.0


def test_rate_keeps_few_points_however_often_it_is_called() -> None:
    clock = FakeClock()
    rate = Rate(10.0, clock)
    for call in range(20_000):
        clock.now += 0.001
        rate.observe(call)
    assert rate.per_second == pytest.approx(1000.0, rel=0.01)
    assert len(rate._points) < 250


def test_rate_of_one_moment_is_nothing() -> None:
    rate = Rate(10.0, FakeClock())
    rate.observe(0)
    rate.observe(10)
    assert rate.per_second == 0.0


def test_a_ratio_is_that_of_what_came_since_the_last_look() -> None:
    ratio = Ratio()
    assert ratio.take() is None
    ratio.add(30, 10)
    ratio.add(30, 0)
    assert ratio.take() == 6.0
    ratio.add(5, 0)
    assert ratio.take() is None, "it waits for something to be divided by"
    ratio.add(5, 4)
    assert ratio.take() == 2.5


def test_steady_rate_leaves_compilation_out() -> None:
    clock = FakeClock()
    rate = SteadyRate(clock)
    assert rate.per_second(50) is None
    clock.now += 30  # compiling
    rate.start(50)
    assert rate.started
    assert rate.per_second(50) is None
    clock.now += 2
    rate.start(200)  # changes nothing
    assert rate.per_second(250) == 100.0


def test_episodes_average_the_last_window() -> None:
    episodes = Episodes(window=3)
    assert episodes.row() == {"episodes": 0.0}
    for number, value in enumerate([9.0, 0.0, 3.0, 6.0, 0.0], 1):
        episodes.add(value, length=10 * number)
        assert episodes.full == (number >= 3)
    assert episodes.row() == {
        "episodes": 5.0,
        "mean_return": 3.0,
        "best_mean_return": 4.0,
        "episode_length": 40.0,
    }


def test_a_lucky_first_episode_is_not_the_best_window() -> None:
    episodes = Episodes(window=2)
    episodes.add(100.0, 1)
    assert episodes.best_mean_return == 100.0
    episodes.add(0.0, 1)
    assert episodes.best_mean_return == 50.0


def test_a_window_that_was_counted_elsewhere() -> None:
    episodes = Episodes(window=3)
    episodes.show([5.0, 0.0, 0.0], [4, 0, 0], 1)
    assert (episodes.count, episodes.full, episodes.mean_return, episodes.mean_length) == (1, False, 5.0, 4.0)
    episodes.show(np.array([6.0, 3.0, 9.0]), np.array([4, 4, 7]), 30)
    assert (episodes.count, episodes.full, episodes.mean_return, episodes.mean_length) == (30, True, 6.0, 5.0)
    episodes.show([0.0, 3.0, 9.0], [4, 4, 4], 31)
    assert (episodes.mean_return, episodes.best_mean_return) == (4.0, 6.0)


def test_a_long_window_is_the_same_as_its_episodes_one_by_one_and_keeps_no_hold_of_what_was_shown() -> None:
    random = np.random.default_rng(0)
    returns, lengths = random.normal(size=3000).astype(np.float32), random.integers(1, 9, 3000, np.int32)
    shown, added = Episodes(3000), Episodes(3000)
    for value, length in zip(returns.tolist(), lengths.tolist(), strict=True):
        added.add(value, length)
    shown.show(returns, lengths, 3000)
    returns[:], lengths[:] = 0, 0
    assert shown.row() == added.row()
    assert json.dumps(shown.to_json()) == json.dumps(added.to_json())


def test_episodes_of_several_agents_are_means_over_them() -> None:
    each = [Episodes(2), Episodes(2)]
    both = EpisodesOfSeveral(each)
    each[0].add(1.0, 5)
    assert both.mean_return is None
    assert both.row() == {"episodes": 0.5}
    each[1].add(4.0, 7)
    assert (both.mean_return, both.full) == (2.5, False)
    for one, value in zip(each, (3.0, 6.0), strict=True):
        one.add(value, 9)
    both.look()
    assert both.full
    each[0].add(-5.0, 1)
    both.look()
    row = {"episodes": 2.5, "mean_return": 2.0, "best_mean_return": 3.5, "episode_length": 6.5}
    assert both.row() == row, "the best is that of the mean, not the mean of each one's best"
    again = EpisodesOfSeveral([Episodes(2), Episodes(2)])
    again.restore(json.loads(json.dumps(both.to_json())))
    assert again.row() == row


@pytest.mark.parametrize("spoiled", [float("nan"), float("inf")])
def test_a_return_that_is_not_finite_is_no_mean_and_is_forgotten(spoiled: float) -> None:
    episodes, again = Episodes(window=2), Episodes(window=2)
    for value in (1.0, spoiled):
        episodes.add(value, 7)
    assert (episodes.mean_return, episodes.best_mean_return) == (None, None)
    again.restore(json.loads(json.dumps(episodes.to_json(), allow_nan=False)))
    for meter in (episodes, again):
        assert meter.mean_return is None and meter.full
        for value in (2.0, 4.0):
            meter.add(value, 7)
        assert (meter.mean_return, meter.best_mean_return) == (3.0, 3.0)


def test_meters_continue_from_json() -> None:
    episodes, tally = Episodes(window=2), Tally()
    for value in (1.0, 2.0, 5.0):
        episodes.add(value, 7)
        tally.add(value)
    kept = json.loads(json.dumps([episodes.to_json(), tally.to_json(), Tally().to_json()]))
    again, counted, empty = Episodes(window=2), Tally(), Tally()
    again.restore(kept[0])
    counted.restore(kept[1])
    empty.restore(kept[2])
    assert again.row() == episodes.row()
    assert (counted.mean, counted.maximum) == (tally.mean, tally.maximum)
    assert (empty.mean, empty.maximum) == (None, None)


def test_tally_since_the_last_row_and_over_the_run() -> None:
    tally = Tally()
    assert tally.take() is None
    tally.add(np.array([[1, 2], [3, 6]]))
    tally.add([])
    assert tally.take() == (3.0, 6.0)
    tally.add(-2)
    assert tally.take() == (-2.0, -2.0)
    assert (tally.mean, tally.maximum) == (2.0, 6.0)


def test_tally_counts_what_threads_add() -> None:
    tally = Tally()
    threads = [threading.Thread(target=lambda: [tally.add(1.0) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tally.to_json() == {"count": 2000, "total": 2000.0, "maximum": 1.0}


def test_share_counts_also_the_part_of_a_span_that_still_runs() -> None:
    clock = FakeClock()
    share = Share(clock)
    clock.now += 1
    with share:
        clock.now += 2
        assert share.take() == pytest.approx(2 / 3)
        clock.now += 1
    clock.now += 3
    assert share.take() == pytest.approx(1 / 4)
    assert share.take() == 0.0
