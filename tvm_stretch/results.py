"""The classes of results, for annotations and ``isinstance``; ``docs/results.md`` explains them."""

from tvm_stretch.comparing import PlanTable
from tvm_stretch.cost.calibrate import Calibration
from tvm_stretch.cost.measured_model import MeasuredModel
from tvm_stretch.cost.verdicts import Verdicts
from tvm_stretch.differences import Differences
from tvm_stretch.plan.considered import Considered
from tvm_stretch.plan.deviations import Execution
from tvm_stretch.problems import NetworkProblem
from tvm_stretch.remote.description import Description
from tvm_stretch.remote.remote_model import RemoteModel
from tvm_stretch.runtime.benchmark import BenchmarkResult, ProfileResult
from tvm_stretch.runtime.meters import Energy
from tvm_stretch.runtime.stream import FrameRun, Stream
from tvm_stretch.runtime.timeline import Timeline
from tvm_stretch.runtime.values import TensorInfo
from tvm_stretch.search.front import PlanFront
from tvm_stretch.stretching.front import Front
from tvm_stretch.stretching.judge import Candidate
from tvm_stretch.stretching.levels import Compression
from tvm_stretch.stretching.stretching import Stretching

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
