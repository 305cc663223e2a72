"""Where a model came from: a compile or files, and what `export` can write of it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_stretch.base.errors import ArtifactError, InputError
from tvm_stretch.base.files import as_path
from tvm_stretch.run.artifact import PrivateCopy, copy_artifact, write_data

if TYPE_CHECKING:  # a phone has no compiler
    from tvm_stretch.run.parts import Parts


@dataclass(frozen=True)
class Origin:
    """One of the first two is there.

    Attributes:
        parts: what `export` has to write, for a model that was just compiled.
        artifact: what the model was loaded from.
        data: the network, if it came beside its kernels.
    """

    parts: Parts | None = None
    artifact: PrivateCopy | None = None
    data: PrivateCopy | None = None

    def export(
        self,
        path: str | Path,
        *,
        fcompile: Callable[..., object] | None = None,
        data: str | Path | None = None,
    ) -> None:
        """Write the artifact: one shared library that `load` and TVM's `load_module` open.

        Args:
            path: the file to write; it appears complete or not at all.
            data: a second file, for graph, plan and weights; the library then has the kernels only.
                ``load(path, data)`` opens both.
            fcompile: links the library, as for TVM's `export_library`. By default that is this
                machine's compiler; for other machines zig, or the clang of an Android NDK that
                ``ANDROID_NDK_HOME`` names.

        Raises:
            ArtifactError: the folder does not exist, or linking failed.
            TargetError: nothing here links for the target.
        """
        path = as_path(path, "the artifact")
        if fcompile is not None and not callable(fcompile):
            raise InputError(
                f"expected a function for fcompile, got {fcompile!r:.100}; leave it out for the "
                "usual linker"
            )
        if self.parts is not None:
            self.parts.write(path, fcompile, with_weights=data is None)
        elif self.artifact is not None and fcompile is None and data is None and not self.data:
            copy_artifact(self.artifact, path)
        else:
            raise ArtifactError(
                "expected a model that was just compiled for export with fcompile or data, got one "
                "that was loaded; compile it again"
            )
        if data is not None:
            self.export_data(data)

    def export_data(self, path: str | Path) -> None:
        """Write the network as data, for a library of kernels that was exported before.

        The library must have all of its kernels, those of the same layers and plan; weights may be
        others. The file is checked for damage, not for its origin: sign it where that matters.

        Args:
            path: the file to write; it appears complete or not at all.

        Raises:
            ArtifactError: the folder does not exist, or the model was loaded.
        """
        path = as_path(path, "the data")
        if self.parts is not None:
            write_data(self.parts.graph, self.parts.weights, path)
        elif self.data is not None:
            copy_artifact(self.data, path)
        else:
            raise ArtifactError(
                "expected a model that was just compiled for export_data, got one that was "
                "loaded; compile it again"
            )

    def bytes(self) -> tuple[bytes, bytes | None]:
        """The artifact, and the data beside it."""
        if self.artifact is not None:
            return self.artifact.read(), self.data.read() if self.data else None
        with tempfile.TemporaryDirectory() as folder:
            self.export(path := Path(folder, "model.so"))
            return path.read_bytes(), None
