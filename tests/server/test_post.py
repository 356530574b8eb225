"""Every update arrives once, in the order of its sender, in fewer calls than there are updates."""

import asyncio
import threading

from penstock.server.post import Post


def test_nothing_is_lost() -> None:
    async def run() -> None:
        post: Post[tuple[int, int]] = Post(asyncio.get_running_loop())
        found: list[tuple[int, int]] = []
        over = asyncio.Event()

        def take(update: tuple[int, int]) -> None:
            found.append(update)
            if len(found) == 4 * 5000:
                over.set()

        def sender(number: int) -> None:
            for count in range(5000):
                post.send(take, (number, count))

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
    post: Post[int] = Post(loop)
    loop.close()
    post.send(print, 1)
