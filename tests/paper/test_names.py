from paper.runs import short_names


def changed(record, **changes):
    return record.model_copy(update={"changes": changes})


def test_names_are_short_and_differ_where_labels_do(make_record):
    plain = make_record("nll")
    records = [
        plain,
        changed(plain, **{"schedule.kind": "cosine", "schedule.average": 0.25, "schedule.floor": 0.2, "epochs": 96}),
        changed(plain, **{"schedule.kind": "cosine", "schedule.average": 0.25, "schedule.floor": 0.2}),
        changed(plain, **{"schedule.kind": "cosine", "method.options.gamma": 1}),
        changed(plain, **{"schedule.kind": "cosine", "method.options.gamma": 2}),
        changed(plain, **{"method.options.gamma": 2}),
        changed(plain, budget=0.6),
    ]
    names = short_names(records)
    expected = [
        "nll",
        "nll, averaged, 96 epochs",
        "nll, averaged",
        "nll, cosine a",
        "nll, cosine b",
        "nll a",
        "nll, 60 %",
    ]
    assert [names[record.label] for record in records] == expected
    assert len(set(names.values())) == len(records)


def test_there_are_letters_for_any_number(make_record):
    plain = make_record("nll")
    records = [changed(plain, **{"method.options.gamma": number}) for number in range(60)]
    assert len(set(short_names(records).values())) == 60
