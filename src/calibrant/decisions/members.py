"""Which cases belong together: groups that a promise is made for, clusters whose cases depend on each other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrant.decisions.rule import GroupEvidence
from calibrant.errors import invalid
from calibrant.metrics.metric import Groups, column_of
from calibrant.metrics.subgroups import group_rows
from calibrant.predictions import Predictions


@dataclass(frozen=True)
class Members:
    """Groups and clusters of some cases.

    Attributes:
        column: Name of the column of the groups; None without groups.
        groups: Group to its rows.
        clusters: Number of the cluster of each case; None where all are independent.
        cluster_column: Name of the column of the clusters; None without clusters.
    """

    column: str | None
    groups: Mapping[str, NDArray[np.int64]]
    clusters: NDArray[np.int64] | None
    cluster_column: str | None = None

    @property
    def n_clusters(self) -> int | None:
        """Number of clusters."""
        return None if self.clusters is None else int(self.clusters.max()) + 1

    @property
    def largest_cluster(self) -> int | None:
        """Cases of the largest cluster."""
        return None if self.clusters is None else int(np.bincount(self.clusters).max())


def check_members(
    predictions: Predictions, groups: Groups | None, clusters: Groups | None, *, per_class: bool
) -> Members:
    """Groups and clusters as row numbers; groups are refused beside thresholds per class."""
    if groups is not None and per_class:
        raise invalid("groups", "be left out with per_class", "both", "Choose one of the two promises.")
    numbers = cluster_column = None
    if clusters is not None:
        cluster_column = clusters if isinstance(clusters, str) else "clusters"
        values = column_of(predictions, clusters, "clusters")
        names = np.asarray([str(value) for value in values.tolist()])
        numbers = np.unique(names, return_inverse=True)[1].astype(np.int64)
    column = None if groups is None else groups if isinstance(groups, str) else "groups"
    return Members(column, {} if groups is None else group_rows(predictions, groups), numbers, cluster_column)


def group_evidence(
    members: Members,
    automate: NDArray[np.bool_],
    correct: NDArray[np.bool_],
    promised: Mapping[str, NDArray[np.int64]],
) -> tuple[GroupEvidence, ...]:
    """Counts of a rule in every group."""
    wrong = automate & ~correct
    return tuple(
        GroupEvidence(name, len(rows), int(automate[rows].sum()), int(wrong[rows].sum()), name in promised)
        for name, rows in members.groups.items()
    )


def group_note(
    evidence: tuple[GroupEvidence, ...], fewest: int, fewer: int, cases: int, passes: Callable[[str], bool]
) -> str:
    """For which groups the promise is made, for which it is not, and what that costs in automation.

    Args:
        evidence: Counts of the rule in every group.
        fewest: Cases that a group needs to be promised anything.
        fewer: How many fewer cases are automated than without groups.
        cases: All cases.
        passes: Whether some threshold could be promised for a group if it were alone.
    """
    inside = [each.name for each in evidence if each.promised]
    outside = [each.name for each in evidence if not each.promised]
    sentences = []
    if inside and any(each.automated for each in evidence):
        sentences.append(f"It is promised for all cases and for each of {len(inside)} groups ({_listed(inside)}).")
        sentences.append(
            f"Against a promise for all cases together that costs {100 * fewer / cases:.1f} points of automation."
        )
    elif inside:
        failing = [name for name in inside if not passes(name)]
        why = f"{_listed(failing)} do not show it at any threshold" if failing else "no threshold passes in all of them"
        sentences.append(f"It was asked for each of {len(inside)} groups: {why}.")
    if outside:
        sentences.append(
            f"Nothing is promised for {_listed(outside)} alone: fewer than {fewest:,} cases cannot show it; "
            "the promise covers their cases only as part of all."
        )
    return " ".join(sentences)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
