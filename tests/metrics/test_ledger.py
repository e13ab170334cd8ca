import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedbed.metrics.ledger import Ledger, carried_out


def test_steps_move_from_column_to_column() -> None:
    books = Ledger()
    books.decide(10, resets=2)
    books.cut(6)
    books.train(4)
    books.drop(open_steps=3, queued_steps=1)
    counts = {"received": 10, "trained": 4, "queued": 1, "open": 1, "dropped": 4, "resets": 2}
    assert books.counts() == counts
    assert carried_out(counts) == 8


@given(st.lists(st.tuples(st.sampled_from(["decide", "cut", "train", "drop", "lose"]), st.integers(0, 5))))
def test_the_books_balance_or_the_booking_is_refused(bookings: list[tuple[str, int]]) -> None:
    books = Ledger()
    received = trained = queued = opened = dropped = 0
    for what, steps in bookings:
        if what == "decide":
            books.decide(steps)
            received, opened = received + steps, opened + steps
        elif what == "cut" and steps <= opened:
            books.cut(steps)
            opened, queued = opened - steps, queued + steps
        elif what == "train" and steps <= queued:
            books.train(steps)
            queued, trained = queued - steps, trained + steps
        elif what == "drop" and steps <= opened:
            books.drop(open_steps=steps)
            opened, dropped = opened - steps, dropped + steps
        elif what == "lose" and steps <= queued:
            books.drop(queued_steps=steps)
            queued, dropped = queued - steps, dropped + steps
        assert books.counts() == {
            "received": received,
            "trained": trained,
            "queued": queued,
            "open": opened,
            "dropped": dropped,
            "resets": 0,
        }
        assert received == trained + queued + opened + dropped


@pytest.mark.parametrize(
    "booking",
    [
        lambda books: books.cut(3),
        lambda books: books.train(1),
        lambda books: books.drop(open_steps=3),
        lambda books: books.drop(queued_steps=1),
        lambda books: books.drop(open_steps=-1),
        lambda books: books.decide(1, resets=4),
        lambda books: books.restore({"received": 1, "trained": 0, "queued": 0, "open": 0, "dropped": 0}),
    ],
)
def test_books_that_do_not_balance_are_an_error(booking: object) -> None:
    books = Ledger()
    books.decide(2)
    with pytest.raises(AssertionError, match="do not balance"):
        booking(books)  # type: ignore[operator]


def test_restore_takes_over_counts() -> None:
    counts = {"received": 10, "trained": 4, "queued": 1, "open": 1, "dropped": 4, "resets": 3}
    books = Ledger()
    books.restore(counts)
    assert books.counts() == counts


def test_books_of_0_1_go_on_with_what_they_had_counted() -> None:
    before = {"received": 10, "trained": 4, "queued": 1, "open": 1, "dropped": 4}
    assert carried_out(before) == 10
    books = Ledger()
    books.restore(before)
    books.decide(5, resets=2)
    assert carried_out(books.counts()) == 13


def test_threads_lose_nothing() -> None:
    books, threads, rounds = Ledger(), 4, 500
    together = threading.Barrier(threads)

    def work() -> None:
        together.wait()
        for _ in range(rounds):
            books.decide(3, resets=1)
            books.cut(2)
            books.train(1)
            books.drop(open_steps=1, queued_steps=1)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    n = threads * rounds
    counts = {"received": 3 * n, "trained": n, "queued": 0, "open": 0, "dropped": 2 * n, "resets": n}
    assert books.counts() == counts
