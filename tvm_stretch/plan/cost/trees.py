"""Load trees that xgboost has learned, after checking the file's content.

xgboost does not check its input, and an index out of range ends the process. Therefore it only
reads a model that is written here, around trees whose indices were checked. It is imported when it
is needed: importing takes a second, and users who never measure need not install it.
"""

from __future__ import annotations

import json
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tvm_stretch.base.errors import CostModelError, InstallError
from tvm_stretch.base.files import is_finite

if TYPE_CHECKING:
    import xgboost

_INTEGERS = ("left_children", "right_children", "split_indices", "default_left")
_NUMBERS = "split_conditions"
_MOST_NODES, _MOST_TREES = 4096, 10_000
_NO_PARENT = 2**31 - 1  # the parent of a root


def the_xgboost() -> ModuleType:
    """The module."""
    try:
        import xgboost
    except ImportError as error:
        raise InstallError(
            f"expected xgboost for cost models, got none ({error}); pip install xgboost-cpu, or "
            "xgboost, which is the same module and can use a GPU"
        ) from error
    return xgboost


def load_trees(data: Any, width: int) -> xgboost.Booster:
    """A model with the trees that `xgboost` saved as JSON.

    Raises:
        CostModelError: it does not contain trees with ``width`` inputs.
    """
    trees = data["learner"]["gradient_booster"]["model"]["trees"]
    if not isinstance(trees, list) or not 1 <= len(trees) <= _MOST_TREES:
        raise _refused("the trees", f"from 1 to {_MOST_TREES}", trees)
    written = [_written(tree, number, width) for number, tree in enumerate(trees)]
    found: xgboost.Booster = the_xgboost().Booster()
    found.load_model(bytearray(json.dumps(_around(written, width)).encode()))
    return found


def _written(tree: Any, number: int, width: int) -> dict[str, Any]:
    """One tree: its checked indices and numbers, and fields that are derived from them."""
    left, right, feature, default = (tree[name] for name in _INTEGERS)
    split = tree[_NUMBERS]
    lists = (left, right, feature, default, split)
    if any(not isinstance(of, list) or len(of) != len(left) for of in lists):
        raise _refused(f"tree {number}", "lists of one length", [type(of) for of in lists])
    count = len(left)
    whole = all(type(value) is int for of in lists[:-1] for value in of)
    if not whole or not all(map(is_finite, split)) or not 1 <= count <= _MOST_NODES:
        raise _refused(f"tree {number}", f"from 1 to {_MOST_NODES} nodes of numbers", count)
    parents = [_NO_PARENT] * count
    for node in range(count):
        for child in {left[node], right[node]} - {-1}:
            if not node < child < count or parents[child] != _NO_PARENT:
                raise _refused(f"node {node} of tree {number}", "children of its own", child)
            parents[child] = node
        if (left[node] == -1) != (right[node] == -1) or not 0 <= feature[node] < width:
            raise _refused(f"node {node} of tree {number}", "two children, or none", feature[node])
    if parents.count(_NO_PARENT) != 1:
        raise _refused(f"tree {number}", "one root", parents.count(_NO_PARENT))
    split, zeros = [float(value) for value in split], [0.0] * count
    return {
        **dict(
            zip(_INTEGERS, (left, right, feature, [int(bool(v)) for v in default]), strict=True)
        ),
        **{_NUMBERS: split, "base_weights": split, "parents": parents, "id": number},
        **{"loss_changes": zeros, "sum_hessian": zeros, "split_type": [0] * count},
        **{f"categories{part}": [] for part in ("", "_nodes", "_segments", "_sizes")},
        "tree_param": {
            **{"num_deleted": "0", "num_feature": str(width), "num_nodes": str(count)},
            "size_leaf_vector": "1",
        },
    }


def _around(trees: list[dict[str, Any]], width: int) -> dict[str, Any]:
    """A sum of trees in the format that xgboost reads."""
    version = [int(part) for part in the_xgboost().__version__.split("+")[0].split(".")[:3]]
    return {
        "version": version,
        "learner": {
            **{"attributes": {}, "feature_names": [], "feature_types": []},
            "gradient_booster": {
                "name": "gbtree",
                "model": {
                    "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
                    "gbtree_model_param": {
                        "num_parallel_tree": "1",
                        "num_trees": str(len(trees)),
                    },
                    "iteration_indptr": list(range(len(trees) + 1)),
                    "tree_info": [0] * len(trees),
                    "trees": trees,
                },
            },
            "learner_model_param": {
                **{"base_score": "0E0", "boost_from_average": "0", "num_class": "0"},
                **{"num_feature": str(width), "num_target": "1"},
            },
            "objective": {
                "name": "reg:pseudohubererror",
                "pseudo_huber_param": {"huber_slope": "1"},
            },
        },
    }


def _refused(where: str, expected: str, got: object) -> CostModelError:
    return CostModelError(
        f"expected {expected} for {where} of the cost model, got {str(got)[:60]}; train again"
    )
