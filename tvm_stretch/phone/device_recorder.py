"""The power that the battery of a device gives while a model runs there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm_stretch.base.errors import (
    DeviceError,
    MeterError,
    last_line,
)
from tvm_stretch.run.meters import (
    LEAST_STEPS,
    Meter,
    mean_power,
)

if TYPE_CHECKING:
    from tvm_stretch.phone.device import Device

SUPPLIES = "/sys/class/power_supply"


class DeviceRecorder:
    """What the battery of a device gives; see `run.meters.Recorder`."""

    error: MeterError | None = None

    def __init__(self, device: Device) -> None:
        self._device = device
        self._name, self._steps = "", [(0.0, 0.0)]

    def __enter__(self) -> None:
        try:
            self._ask("start_meter", SUPPLIES)
        except DeviceError as error:
            raise MeterError(
                f"expected a battery of {self._device.name} for energy, got: {last_line(error)}"
            ) from error

    def __exit__(self, *_: object) -> None:
        self._name, *lines = str(self._ask("stop_meter")).splitlines()
        pairs = [tuple(map(float, line.split())) for line in lines]
        self._steps = [(ns / 1e9, watts) for ns, watts in pairs]

    def has_moved(self) -> bool:
        """See `run.meters.Recorder`."""
        return int(self._ask("meter_steps")) > LEAST_STEPS

    def powers(self) -> list[tuple[float, float]]:
        """See `run.meters.Recorder`."""
        return [mean_power(Meter(self._name, "watts", lambda: 0.0), self._steps)]

    def names(self) -> tuple[str, ...]:
        """See `run.meters.Recorder`."""
        return (self._name,)

    def _ask(self, function: str, *given: str) -> Any:
        return self._device.call("to read its battery", f"tvm_stretch.{function}", *given)
