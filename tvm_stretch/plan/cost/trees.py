"""Trees that xgboost has learned, as text in a file, and their check before xgboost reads them.

xgboost does not check its input, and an index out of range ends the process. Therefore it only
reads a model that is written here, around trees whose indices were checked. It is imported when it
is needed: importing takes a second, and users who never measure need not install it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_stretch.base.errors import CostModelError, InstallError

if TYPE_CHECKING:
    import xgboost

Array = np.ndarray[Any, Any]

_NODE = np.dtype([("left", "<i4"), ("right", "<i4"), ("feature", "<i4"), ("number", "<f4")])
"""A node: its children among all nodes, or -1 twice, and the split, or a leaf's answer."""

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


def text_of(booster: xgboost.Booster) -> str:
    """The nodes of all trees, one tree after the other, as base64."""
    learner = json.loads(bytes(booster.save_raw("json")))["learner"]
    tables, start = [], 0
    for tree in learner["gradient_booster"]["model"]["trees"]:
        nodes = np.zeros(len(tree["split_indices"]), _NODE)
        for name in ("left", "right"):
            children = np.asarray(tree[f"{name}_children"])
            nodes[name] = np.where(children < 0, -1, children + start)
        nodes["feature"], nodes["number"] = tree["split_indices"], tree["split_conditions"]
        tables.append(nodes)
        start += len(nodes)
    return base64.b64encode(np.concatenate(tables).tobytes()).decode()


def trees_of(text: str, width: int) -> list[Array]:
    """The nodes of each tree that `text_of` wrote; children count from the tree's root."""
    nodes = np.frombuffer(base64.b64decode(text, validate=True), _NODE)
    places, is_inner = np.arange(len(nodes)), (nodes["left"] != -1) | (nodes["right"] != -1)
    children = np.stack([nodes["left"], nodes["right"]], axis=1)[is_inner]
    if (
        not len(nodes)
        or not ((children > places[is_inner, None]) & (children < len(nodes))).all()
        or len(np.unique(children)) < children.size
        or not ((nodes["feature"] >= 0) & (nodes["feature"] < width)).all()
        or not np.isfinite(nodes["number"]).all()
    ):
        raise CostModelError("expected two children of its own, or none, for each node")
    roots = np.setdiff1d(places, children)
    tree = np.searchsorted(roots, places, side="right") - 1
    sizes = np.bincount(tree)
    if (tree[children] != tree[is_inner, None]).any() or len(sizes) > _MOST_TREES:
        raise CostModelError("expected trees one after the other")
    if sizes.max() > _MOST_NODES:
        raise CostModelError("expected small trees")
    own = nodes.copy()
    for name in ("left", "right"):
        own[name] -= np.where(is_inner, roots[tree], 0)
    return np.split(own, roots[1:])


def load_trees(trees: Sequence[Array], width: int) -> xgboost.Booster:
    """A model with the trees of `trees_of`."""
    written = [_written(tree, number, width) for number, tree in enumerate(trees)]
    booster: xgboost.Booster = the_xgboost().Booster()
    booster.load_model(bytearray(json.dumps(_around(written, width)).encode()))
    return booster


def _written(tree: Array, number: int, width: int) -> dict[str, Any]:
    """One tree with the fields that are derived from its nodes."""
    left, right, feature, split = (tree[name].tolist() for name in _NODE.names or ())
    count = len(left)
    parents, zeros = [_NO_PARENT] * count, [0] * count
    for node in range(count):
        if left[node] != -1:
            parents[left[node]] = parents[right[node]] = node
    return {
        **{"left_children": left, "right_children": right, "split_indices": feature},
        **{"split_conditions": split, "base_weights": split, "parents": parents, "id": number},
        **{"loss_changes": [0.0] * count, "sum_hessian": [0.0] * count},
        **{"default_left": zeros, "split_type": zeros},  # no input is missing, and all are numbers
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
