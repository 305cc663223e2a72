"""The classes of results, for annotations and ``isinstance``; ``docs/results.md`` explains them."""

from tvm_stretch.api.differences import Differences
from tvm_stretch.api.problems import NetworkProblem
from tvm_stretch.lab.compress_within import Compression
from tvm_stretch.lab.stretching.front import Front
from tvm_stretch.lab.stretching.judge import Candidate
from tvm_stretch.lab.stretching.stretching import Stretching
from tvm_stretch.phone.description import Description
from tvm_stretch.phone.remote_model import RemoteModel
from tvm_stretch.plan.considered import Considered
from tvm_stretch.plan.cost.measured_model import MeasuredModel
from tvm_stretch.plan.cost.verdicts import Verdicts
from tvm_stretch.plan.measuring.calibrate import Calibration
from tvm_stretch.plan.plan import Execution
from tvm_stretch.plan.plan_table import PlanTable
from tvm_stretch.plan.search.candidates import PlanFront
from tvm_stretch.run.benchmark import BenchmarkResult, ProfileResult
from tvm_stretch.run.meters import Energy
from tvm_stretch.run.stream import FrameRun, Stream
from tvm_stretch.run.timeline import Timeline
from tvm_stretch.run.values import TensorInfo

__all__ = [
    "BenchmarkResult",
    "Calibration",
    "Candidate",
    "Compression",
    "Considered",
    "Description",
    "Differences",
    "Energy",
    "Execution",
    "FrameRun",
    "Front",
    "MeasuredModel",
    "NetworkProblem",
    "PlanFront",
    "PlanTable",
    "ProfileResult",
    "RemoteModel",
    "Stream",
    "Stretching",
    "TensorInfo",
    "Timeline",
    "Verdicts",
]
