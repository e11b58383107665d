import asyncio
import json
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from calibrant.decisions import Policy
from calibrant.deployment import Decider
from calibrant.deployment.networks import InputSpec
from calibrant.deployment.onnx_file import Contents
from calibrant.deployment.service import Service


class Taken(deque):
    """Requests that seem to wait although a thread has just taken the last one."""

    def __bool__(self):
        return True


def test_a_request_that_a_thread_takes_at_the_last_moment_costs_no_thread():
    """The event loop then failed between a look at the requests and the next line, and a thread got no work again."""
    inputs = (InputSpec("inputs", "float64", (3,), -9.0, 9.0),)
    contents = Contents(inputs=inputs, network="0" * 64, policy=Policy(3))
    service = Service(Decider(contents, lambda arrays: arrays["inputs"]), most_cases=10, most_bytes=1000)
    service._waiting = Taken()

    async def ask():
        body = json.dumps({"inputs": np.zeros((2, 3)).tolist()}).encode()
        return [json.loads(await service.decide(body)) for _ in range(20)]

    # In a thread of its own: the browser of other tests has an event loop in this one.
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(asyncio.run, asyncio.wait_for(ask(), 60)).result()
    assert [len(answer["decisions"]) for answer in answers] == [2] * 20
