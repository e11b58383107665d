"""What to automate and what to send to a person: thresholds with a promise, and policies that travel as JSON."""

from calibrant.decisions.binary import BinaryRule, binary_rates, choose_binary_rule
from calibrant.decisions.certify import certify
from calibrant.decisions.choose import choose_threshold
from calibrant.decisions.costs import read_cost_matrix
from calibrant.decisions.multilabel import (
    MultiLabel,
    cases_by_label,
    choose_label_rules,
    evaluate_labels,
    read_labels,
)
from calibrant.decisions.policy import Policy, PolicyLike, fit_policy
from calibrant.decisions.promise_checks import PromiseCheck, Verdict, check_policy, check_promise
from calibrant.decisions.risk_coverage import risk_coverage
from calibrant.decisions.route_files import route_file, route_labels
from calibrant.decisions.rule import Costs, Evidence, Routed, RoutingRule
from calibrant.decisions.shortlist import Shortlist, check_shortlist, choose_shortlist
from calibrant.decisions.weights import sample_by_weights

__all__ = [
    "BinaryRule",
    "Costs",
    "Evidence",
    "MultiLabel",
    "Policy",
    "PolicyLike",
    "PromiseCheck",
    "Routed",
    "RoutingRule",
    "Shortlist",
    "Verdict",
    "binary_rates",
    "cases_by_label",
    "certify",
    "check_policy",
    "check_promise",
    "check_shortlist",
    "choose_binary_rule",
    "choose_label_rules",
    "choose_shortlist",
    "choose_threshold",
    "evaluate_labels",
    "fit_policy",
    "read_cost_matrix",
    "read_labels",
    "risk_coverage",
    "route_file",
    "route_labels",
    "sample_by_weights",
]
