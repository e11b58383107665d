import numpy as np
import pytest

from calibrant.errors import InvalidInput, OutputError
from calibrant.report.style import DARK_PALETTE, PALETTE, line_style, new_figure, save_figure, styled


def luminance(colour):
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def draw():
    figure = new_figure(3, 2)
    figure.subplots().plot([0, 1], [0, 1], label="x")
    return figure


def test_saved_twice_gives_the_same_bytes(tmp_path):
    for folder in ("a", "b"):
        svg, png = save_figure(styled(draw)(), tmp_path / folder / "line.of.x")
        assert (svg.name, png.name) == ("line.of.x.svg", "line.of.x.png")
    for name in ("line.of.x.svg", "line.of.x.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert (tmp_path / "a" / "line.of.x.png").read_bytes().startswith(b"\x89PNG")
    assert b"<dc:date>" not in (tmp_path / "a" / "line.of.x.svg").read_bytes()


def test_an_ending_is_refused_because_both_are_written(tmp_path):
    with pytest.raises(InvalidInput, match=r"stem must have no ending, got x\.png"):
        save_figure(draw(), tmp_path / "x.png")


def test_an_unwritable_place_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        save_figure(draw(), tmp_path / "file" / "figure")


def test_style_leaves_the_users_settings_alone():
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    styled(draw)()
    assert dict(mpl.rcParams) == before


def test_no_pyplot_window_is_made():
    import sys

    sys.modules.pop("matplotlib.pyplot", None)
    styled(draw)()
    assert "matplotlib.pyplot" not in sys.modules


def test_thirty_lines_are_all_different():
    looks = {(style["color"], str(style["linestyle"])) for style in map(line_style, range(30))}
    assert len(looks) == 30


def test_colours_stand_out_from_their_ground():
    # 3:1 is what WCAG asks of graphics; amber and sky on white stay below and are never the only mark of a line.
    assert all(contrast(colour, "#ffffff") > 3 for colour in PALETTE[:3])
    assert all(contrast(colour, "#1a2029") > 3 for colour in DARK_PALETTE)
