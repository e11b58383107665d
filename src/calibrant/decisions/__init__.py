"""What to automate and what to send to a person: thresholds with a promise, and rules that travel as JSON."""

from calibrant.decisions.binary import BinaryRates, BinaryRule, binary_rates, choose_binary_rule
from calibrant.decisions.bounds import cases_at_rate, cluster_p_value, interval
from calibrant.decisions.certify import Certificate, certify, default_starts, default_thresholds
from calibrant.decisions.check import GroupCheck, PromiseCheck, check_promise
from calibrant.decisions.choose import choose_threshold
from calibrant.decisions.costs import CostMatrix, CostModel, read_cost_matrix
from calibrant.decisions.coverage import CoverageRow, cheapest_threshold, risk_coverage
from calibrant.decisions.describe import (
    describe_check,
    describe_counts,
    describe_rule,
    describe_shortlist,
)
from calibrant.decisions.mix import note_weights, sample_by_weights
from calibrant.decisions.policy import FILE_NAME, Policy, PolicyLike, as_policy, class_label, fit_policy
from calibrant.decisions.rule import Costs, Evidence, GroupEvidence, Routed, RoutingRule
from calibrant.decisions.shortlist import Shortlist, ShortlistCheck, check_shortlist, choose_shortlist
from calibrant.decisions.stream import RouteCounts, route_file, route_parts
from calibrant.decisions.verdict import Verdict, check_policy

__all__ = [
    "FILE_NAME",
    "BinaryRates",
    "BinaryRule",
    "Certificate",
    "CostMatrix",
    "CostModel",
    "Costs",
    "CoverageRow",
    "Evidence",
    "GroupCheck",
    "GroupEvidence",
    "Policy",
    "PolicyLike",
    "PromiseCheck",
    "RouteCounts",
    "Routed",
    "RoutingRule",
    "Shortlist",
    "ShortlistCheck",
    "Verdict",
    "as_policy",
    "binary_rates",
    "cases_at_rate",
    "certify",
    "cheapest_threshold",
    "check_policy",
    "check_promise",
    "check_shortlist",
    "choose_binary_rule",
    "choose_shortlist",
    "choose_threshold",
    "class_label",
    "cluster_p_value",
    "default_starts",
    "default_thresholds",
    "describe_check",
    "describe_counts",
    "describe_rule",
    "describe_shortlist",
    "fit_policy",
    "interval",
    "note_weights",
    "read_cost_matrix",
    "risk_coverage",
    "route_file",
    "route_parts",
    "sample_by_weights",
]
