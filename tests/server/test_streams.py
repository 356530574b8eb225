"""Streams: signs of life, failures in the middle, and clients that go away."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from penstock.errors import ReadError
from penstock.server.http.errors import ApiError, openai_envelope
from penstock.server.http.streams import KEEP_ALIVE, EventStream, data, merged, unless_disconnected
from penstock.server.service import LoopDispatch
from tests.server.conftest import events


def failure(error: ApiError) -> str:
    return data(openai_envelope(error))


class Client:
    """Hears a response; may go away once it has heard enough."""

    def __init__(self, leaves: Callable[[str], bool] = lambda _: False):
        self.text, self.leaves, self.gone = "", leaves, asyncio.Event()

    async def hear(self, response: EventStream) -> str:
        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        await response(scope, self.receive, self.send)
        return self.text

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.text += message.get("body", b"").decode()
        if self.leaves(self.text):
            self.gone.set()


def test_a_long_silence_is_filled_with_comments() -> None:
    async def scene() -> str:
        heard = Client()
        speak = asyncio.Event()

        async def lines() -> AsyncGenerator[str, None]:
            await speak.wait()
            yield data({"a": "ä"})

        async def wake() -> None:
            while heard.text.count(KEEP_ALIVE) < 3:
                await asyncio.sleep(0.001)
            speak.set()

        response = await EventStream.open(lines(), 0.01, failure)
        return (await asyncio.gather(heard.hear(response), wake()))[0]

    text = asyncio.run(scene())
    assert text.endswith('data: {"a":"ä"}\n\n')
    assert text.startswith(KEEP_ALIVE * 3)


def failing(*before: str, error: Exception) -> Callable[[], AsyncGenerator[str, None]]:
    async def lines() -> AsyncGenerator[str, None]:
        for line in before:
            yield line
        raise error

    return lines


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ReadError("disk"), "unavailable"),
        (ApiError(400, "no", code="bad"), "bad"),
        (KeyError("bug"), "internal_error"),
    ],
)
def test_a_failure_in_the_middle_is_told_and_ends_the_stream(error: Exception, code: str) -> None:
    async def scene() -> str:
        return await Client().hear(await EventStream.open(failing(data(1), error=error)(), 5, failure))

    first, last = events(asyncio.run(scene()))
    assert (first, last["error"]["code"]) == (1, code)
    assert "bug" not in last["error"]["message"]


def test_a_failure_at_once_is_raised() -> None:
    with pytest.raises(ReadError):
        asyncio.run(EventStream.open(failing(error=ReadError("disk"))(), 5, failure))


def test_a_client_that_goes_away_ends_everything() -> None:
    closed: list[int] = []

    async def endless(number: int) -> AsyncGenerator[int, None]:
        try:
            while True:
                await asyncio.sleep(0)
                yield number
        finally:
            closed.append(number)

    async def lines() -> AsyncGenerator[str, None]:
        async for index, _ in merged([endless(0), endless(1), endless(2)], parallel=2):
            yield data(index)

    async def scene() -> str:
        text = await Client(lambda text: "1" in text).hear(await EventStream.open(lines(), 5, failure))
        async with asyncio.timeout(60):
            while len(closed) < 2:
                await asyncio.sleep(0)
        return text

    text = asyncio.run(scene())
    assert sorted(closed) == [0, 1]
    assert "2" not in text  # it had not had its turn


def test_the_first_failure_ends_all() -> None:
    async def fine() -> AsyncGenerator[int, None]:
        yield 1
        await asyncio.Event().wait()

    async def broken() -> AsyncGenerator[int, None]:
        yield 2
        await asyncio.sleep(0.01)
        raise ReadError("disk")

    async def scene() -> None:
        both = merged([fine(), broken()], parallel=2)
        assert [await anext(both), await anext(both)] == [(0, 1), (1, 2)]
        with pytest.raises(ReadError):
            await anext(both)

    asyncio.run(scene())


def test_work_is_given_up_when_nobody_waits() -> None:
    class Gone:
        async def receive(self) -> dict[str, str]:
            return {"type": "http.disconnect"}

    async def scene() -> bool:
        ended = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        with pytest.raises(ApiError):
            await unless_disconnected(Gone(), work())  # type: ignore[arg-type]
        await asyncio.wait_for(ended.wait(), 60)
        return True

    assert asyncio.run(scene())


def test_updates_of_other_threads_arrive_once_and_in_order() -> None:
    async def run() -> None:
        dispatch = LoopDispatch(asyncio.get_running_loop())
        found: list[tuple[int, int]] = []
        over = asyncio.Event()

        def take(update: tuple[int, int]) -> None:
            found.append(update)
            if len(found) == 4 * 5000:
                over.set()

        def sender(number: int) -> None:
            for count in range(5000):
                dispatch.send(take, (number, count))

        threads = [threading.Thread(target=sender, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        await asyncio.wait_for(over.wait(), 60)
        for thread in threads:
            thread.join()
        for number in range(4):
            assert [count for sender, count in found if sender == number] == list(range(5000))

    asyncio.run(run())


def test_a_loop_that_has_ended_is_left_alone() -> None:
    loop = asyncio.new_event_loop()
    dispatch = LoopDispatch(loop)
    loop.close()
    dispatch.send(print, 1)
