"""Findings: what the measurements say is slow or wrong. Pure functions, without MPI.

A figure is compared with the median over nodes or ranks. What disturbs a measurement makes it
worse, never better, so each figure is the best of several, and each suspicion is measured again
before it is told: a node is slow only if it was slow each time.
"""

from __future__ import annotations

from .collective_findings import collectives, shared_kernel
from .core_findings import busy_cores, shared_cores, slow_cores, too_many_threads, wrong_results
from .finding import SEVERITIES, Finding
from .link_findings import (
    broken_messages,
    clock_differences,
    contended_links,
    late_messages,
    slow_links,
)
from .records import Measured
from .setting_findings import interfaces, settings


def findings(measured: Measured) -> list[Finding]:
    """All findings, the worst first."""
    every = [
        *broken_messages(measured),
        *wrong_results(measured),
        *slow_links(measured),
        *late_messages(measured),
        *interfaces(measured),
        *settings(measured),
        *shared_cores(measured),
        *too_many_threads(measured),
        *busy_cores(measured),
        *slow_cores(measured),
        *clock_differences(measured),
        *contended_links(measured),
        *collectives(measured),
        *shared_kernel(measured),
    ]
    return sorted(every, key=lambda finding: SEVERITIES.index(finding.severity))
