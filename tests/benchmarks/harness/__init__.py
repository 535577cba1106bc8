"""How loops are measured: each in a process of its framework, asked block by block, in turns."""

from harness.absent import Absent
from harness.contest import Contestant, contest, fresh_contest
from harness.figures import Figures, Table
from harness.options import Options, options
from harness.report import report

__all__ = ["Absent", "Contestant", "Figures", "Options", "Table", "contest", "fresh_contest", "options", "report"]
