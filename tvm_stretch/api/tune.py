"""Makes plans better: measures kernels, probes operators, fits profiles, compares plans.

ts.tune.measure(["llvm", "opencl"])    # cost models of this machine, which ts.compile then uses
ts.tune.probe("net.onnx", "opencl")    # operators that ts.compile then refuses on a processor
ts.tune.calibrate("phone.csv", networks, name="my-phone")    # a profile, from latencies
ts.tune.compare_plans("net.onnx", [pixel, mi])    # one plan for several devices
"""

from tvm_stretch.api.comparing import compare_plans
from tvm_stretch.phone.fleet import Fleet
from tvm_stretch.plan.measuring.calibrate import calibrate
from tvm_stretch.plan.measuring.measure import measure
from tvm_stretch.plan.measuring.probe import probe

__all__ = ["Fleet", "calibrate", "compare_plans", "measure", "probe"]
