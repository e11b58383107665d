"""Files that cannot be routed are refused in one line, and nothing is written."""

import numpy as np
import pytest

from calibrant.decisions import Policy, RoutingRule, route_file
from calibrant.errors import InvalidInput

POLICY = Policy(3, rule=RoutingRule(threshold=0.8, n_classes=3, class_names=("cat", "dog", "owl")))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,logit_cat,logit_dog\n1,2,3\n", "made for 3 classes and cannot be applied to 2"),
        ("id,logit_cat,logit_dog,logit_fox\n1,2,3,4\n", "name the classes cat, dog, owl, got fox"),
        ("id,logit_cat,logit_dog,logit_owl\n1,2,x,4\n", r"be numbers, got 'x' in row 0, column logit_dog\."),
    ],
)
def test_bad_csv(tmp_path, content, message):
    (tmp_path / "in.csv").write_text(content)
    with pytest.raises(InvalidInput, match=message):
        route_file(POLICY, tmp_path / "in.csv", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"logits": np.zeros((2, 4))}, "^this rule or calibrator was made for 3 classes"),
        ({"logits": np.zeros((2, 3)), "ids": np.arange(1)}, r"ids must have shape \(2,\)"),
        ({"logits": np.zeros((2, 3)), "ids": np.arange(3)}, r"ids must have shape \(2,\)"),
        ({"logits": np.zeros((2, 3)), "ids": np.arange(4).reshape(2, 2)}, r"ids must have shape \(2,\)"),
        ({"logits": np.zeros((2, 3)), "class_names": np.array(["a", "b", "c"])}, "name the classes cat, dog, owl"),
        ({"logits": np.zeros(3)}, "logits must have shape"),
        ({"logits": np.float64(1.0)}, "logits must have shape"),
        ({"logits": np.zeros((2, 3)), "precision": np.asarray("float8")}, "precision must be 'bfloat16'"),
    ],
)
def test_bad_npz(tmp_path, arrays, message):
    np.savez(tmp_path / "in.npz", allow_pickle=True, **arrays)
    with pytest.raises(InvalidInput, match=message):
        route_file(POLICY, tmp_path / "in.npz", tmp_path / "out.csv")


def test_a_damaged_npz_is_refused_as_input(tmp_path, damage):
    np.savez(tmp_path / "in.npz", logits=np.zeros((50, 3)))
    damage(tmp_path / "in.npz")
    with pytest.raises(InvalidInput, match=r"in\.npz must be a whole \.npz file of plain arrays"):
        route_file(POLICY, tmp_path / "in.npz", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("name", ["in.npz", "in.parquet", "in.csv"])
def test_not_such_a_file(tmp_path, name):
    with pytest.raises(InvalidInput, match="does not exist"):
        route_file(POLICY, tmp_path / name, tmp_path / "out.csv")
    (tmp_path / name).write_bytes(b"\xff\xfe nonsense")
    with pytest.raises(InvalidInput, match=r"must be|have columns"):
        route_file(POLICY, tmp_path / name, tmp_path / "out.csv")
