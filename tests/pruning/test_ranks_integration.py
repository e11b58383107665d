"""Two and three gloo processes against one process with the same global batch."""

import importlib.util
import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("rank_program.py")
spec = importlib.util.spec_from_file_location("rank_program", PROGRAM)
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request, python, tmp_path_factory):
    """What each rank saw, all checks in one spawn."""
    folder = tmp_path_factory.mktemp("ranks")
    world_size = request.param
    started = [
        subprocess.Popen(
            [python, str(PROGRAM), str(rank), str(world_size), str(folder)], stderr=subprocess.PIPE, text=True
        )
        for rank in range(world_size)
    ]
    for process in started:
        _, errors = process.communicate(timeout=180)
        assert process.returncode == 0, errors
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(world_size)]


CASES = [(plan, n) for n in program.SIZES for plan in program.PLANS]


@pytest.mark.parametrize(("plan", "n"), CASES)
def test_many_processes_equal_one_with_the_global_batch(ranks, plan, n):
    world_size = len(ranks)
    block = program.BATCH * world_size
    alone = program.train(program.make(n, plan, block), block)
    for epoch, reference in enumerate(alone):
        seen = [rank[f"{plan} {n}"][epoch] for rank in ranks]
        for mine in seen:
            assert mine["kept"] == reference["kept"]
            assert mine["weights"] == reference["weights"]
            assert mine["rows"] == reference["rows"]  # scores, counts, predictions: bit for bit
        steps = {len(mine["batches"]) for mine in seen}
        assert steps == {len(reference["batches"])}
        padding = Counter()
        for g, batch in enumerate(reference["batches"]):
            together = Counter(i for mine in seen for i in mine["batches"][g])
            assert not Counter(batch) - together
            padding += together - Counter(batch)
        tail = len(reference["kept"]) % block
        # Samples are repeated only where the last global batch is smaller than the number of ranks.
        assert padding.total() == (world_size - tail if 0 < tail < world_size else 0)
        union = {i for mine in seen for batch in mine["batches"] for i in batch}
        assert union == set(reference["kept"])


def test_the_cases_cover_padding_uneven_batches_and_pruning(ranks):
    world_size = len(ranks)
    block = program.BATCH * world_size
    tails = {len(epoch["kept"]) % block for plan, n in CASES for epoch in ranks[0][f"{plan} {n}"]}
    assert any(0 < tail < world_size for tail in tails)
    assert any(tail > world_size and tail % world_size for tail in tails)
    for plan in program.PLANS:
        smallest = min(len(epoch["kept"]) for epoch in ranks[0][f"{plan} 61"])
        assert (smallest < 61) == (plan != "nothing")


def test_ranks_that_disagree_all_hear_of_it(ranks):
    for rank in ranks:
        heard = rank["disagreements"]
        assert heard["tampered"] is not None
        assert "kept set" in heard["tampered"]
        assert "settings or targets" in heard["other_seed"]
