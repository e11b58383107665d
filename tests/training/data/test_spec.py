import pytest

from calibrant.errors import InvalidInput
from calibrant.training.data.spec import Spec, anchored, parse_spec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("digits", Spec("digits")),
        ("arrays:a b.npz", Spec("arrays", "a b.npz")),
        ("arrays:what?.npz", Spec("arrays", "what?.npz")),
        ("folder:C:/pictures", Spec("folder", "C:/pictures")),
        ("folder:/x?size=32&colour=grey", Spec("folder", "/x", {"size": "32", "colour": "grey"})),
        ("folder:odd?name?size=32", Spec("folder", "odd?name", {"size": "32"})),
    ],
)
def test_takes_a_name_apart(text, expected):
    assert parse_spec(text) == expected


def test_a_path_can_be_anchored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert anchored("digits") == "digits"
    assert anchored("arrays:a b.npz") == f"arrays:{tmp_path}/a b.npz"
    assert anchored("folder:x?size=32") == f"folder:{tmp_path}/x?size=32"
    assert anchored("arrays:/data/what?.npz") == "arrays:/data/what?.npz"


def test_size():
    assert parse_spec("folder:x?size=32").size() == 32
    assert parse_spec("folder:x?colour=rgb").size() is None


@pytest.mark.parametrize("text", ["0", "a", "-3", "٣", "4097", "30000", "9" * 5000, ""])
def test_absurd_sizes_are_one_line(text):
    with pytest.raises(InvalidInput, match="size in the name of the data must be a whole number from 1 to 4096") as got:
        parse_spec(f"folder:x?size={text}").size()
    assert len(str(got.value)) < 200


def test_unknown_options_are_refused_with_a_guess():
    with pytest.raises(InvalidInput, match=r"got 'sise'. Did you mean 'size'?"):
        parse_spec("folder:x?sise=3").allow("size", "colour")
    with pytest.raises(InvalidInput, match="Leave out the question mark"):
        parse_spec("digits?size=3").allow()


@pytest.mark.parametrize("value", [None, 5])
def test_what_is_no_text_is_one_line(value):
    with pytest.raises(InvalidInput, match=f"data must be the name of a set, .* or folder:DIR, got {value}"):
        parse_spec(value)
