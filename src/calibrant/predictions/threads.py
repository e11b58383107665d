"""Large work shared by a few threads, of which the caller is one."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from calibrant.errors import InvalidInput

_MOST = 4
# A thread is worth starting for about so many parts of half a millisecond: on a busy machine it comes late.
_WORTH = 8


def share(one: Callable[[slice], None], parts: Sequence[slice]) -> None:
    """Call `one` for every part.

    Raises:
        InvalidInput: That of the first part in order that has one, whichever thread met it first.
    """
    threads = min(torch.get_num_threads(), _MOST, len(parts) // _WORTH)
    if threads <= 1:
        for part in parts:
            one(part)
        return
    work = iter(parts)
    refusals: dict[int, InvalidInput] = {}

    def run() -> None:
        for part in work:
            try:
                one(part)
            except InvalidInput as error:
                # Parts are taken in order, so every earlier one is being looked at; later ones do not matter.
                refusals[part.start] = error
                return

    with ThreadPoolExecutor(threads - 1) as pool:
        helpers = [pool.submit(run) for _ in range(threads - 1)]
        run()
    for helper in helpers:
        helper.result()
    if refusals:
        raise refusals[min(refusals)]
