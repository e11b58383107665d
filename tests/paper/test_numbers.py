from calibrant.training import methods
from paper.numbers import METRICS, paper_rows

ROWS = {(row.data, row.model, row.printed): row for row in paper_rows()}


def test_seven_tables_of_seven_columns_whose_methods_exist():
    assert len(ROWS) == 49
    assert {row.method for row in ROWS.values()} <= set(methods.names())
    assert all(0 <= row.value(metric) <= 1 for row in ROWS.values() for metric in METRICS)


def test_what_is_known_about_the_numbers_holds():
    """Facts that were found in the paper independently of this table."""
    c10 = {printed: ROWS["cifar10", "resnet50", printed] for printed in ("LS", "MMCE", "FL+MDCA", "Ours")}
    assert c10["LS"].test_error < c10["MMCE"].test_error  # bold stands at MMCE
    assert c10["Ours"].share_confident < c10["FL+MDCA"].share_confident  # against the caption
    assert round(c10["FL+MDCA"].ece_confident / c10["Ours"].ece_confident, 1) == 6.7
    assert round(c10["FL+MDCA"].ece / c10["Ours"].ece, 1) == 1.8
    mendeley = ROWS["mendeley-v2", "resnet50", "Ours"]
    assert mendeley.test_error == mendeley.share_confident == 22.27  # 139 of 624, twice
    for data in ("cifar10", "cifar100"):
        assert ROWS[data, "resnet32", "FL+MDCA"].ece < ROWS[data, "resnet32", "Ours"].ece
