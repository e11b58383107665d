"""Numbers and sentences as the reader sees them. The page's JavaScript writes the same text for the same number."""

from decimal import ROUND_HALF_UP, Context, Decimal

from calibrant.report.summaries import Automated

DASH = "\N{EN DASH}"  # shown if there is no number
# The default context has 28 digits; a float64 can have 309 before its point.
_ANY_FLOAT = Context(prec=400)
_NBSP = "\N{NO-BREAK SPACE}"


def fixed(value: float, digits: int) -> str:
    """Decimal text, ties away from zero as JavaScript's toFixed does it (Python's format rounds them to even).

    >>> fixed(12.25, 1), format(12.25, ".1f")
    ('12.3', '12.2')
    """
    return str(Decimal(value).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_HALF_UP, context=_ANY_FLOAT))


def percent(value: float | None, digits: int = 1) -> str:
    """A fraction in percent; a dash if there is no number.

    What is almost all or almost nothing gets up to four digits: one mistake in 10,000 is not "100.0 % right".
    """
    if value is None:
        return DASH
    while digits < 4 and 0 < value < 1 and float(fixed(100 * value, digits)) in {0.0, 100.0}:
        digits += 1
    return f"{fixed(100 * value, digits)}{_NBSP}%"


def probability(value: float) -> str:
    """One probability of a model in percent. Digits beyond 99.9 and 0.1 % say nothing about a single case.

    >>> [probability(value).replace(_NBSP, " ") for value in (0.987, 0.999998, 0.0000004)]
    ['98.7 %', 'over 99.9 %', 'below 0.1 %']
    """
    if value > 0.999:
        return f"over{_NBSP}99.9{_NBSP}%"
    if value < 0.001:
        return f"below{_NBSP}0.1{_NBSP}%"
    return percent(value)


def interval(pair: tuple[float, float] | None, digits: int = 1) -> str:
    """An interval of fractions in percent, without the sign: [98.6, 99.1]."""
    if pair is None:
        return ""
    return f"[{fixed(100 * pair[0], digits)},{_NBSP}{fixed(100 * pair[1], digits)}]"


def per_thousand(count: int, cases: int) -> str:
    """Rounded number in a thousand."""
    return f"{int(fixed(1000 * count / cases, 0)):,}"


def confidence(value: float) -> str:
    """A confidence with four decimals, or with as many as show that it is below 1.

    >>> confidence(0.95), confidence(0.68175186), confidence(0.999998), confidence(1.0)
    ('0.95', '0.6818', '0.999998', '1')
    """
    digits = 4
    while digits < 16 and value < 1 and float(fixed(value, digits)) == 1:
        digits += 1
    text = fixed(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def decided(result: Automated) -> str:
    """The rest of a sentence that begins with who decides."""
    if not result.automated:
        return "decides no case alone: all of them go to a person."
    person = "no case goes to a person."
    if result.reviewed:
        person = f"{per_thousand(result.reviewed, result.cases)} of 1,000 cases go to a person."
    return (
        f"decides {percent(result.share)} of cases alone and is right in {percent(result.accuracy)} of them "
        f"{interval(result.interval)}; {person}"
    )


def headline(name: str, result: Automated) -> str:
    """The page in one sentence.

    >>> print(headline("this model", Automated(0.95, 10_000, 7430, 7348, 0.01)).replace(_NBSP, " "))
    At confidence 0.95 this model decides 74.3 % of cases alone and is right in 98.9 % of them [98.6, 99.1];
    257 of 1,000 cases go to a person.
    """
    return f"At confidence {confidence(result.threshold)} {name} {decided(result)}"
