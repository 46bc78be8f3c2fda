"""Helpers that the tests of the deployment share: where it is, and Kustomize in small."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def loaded(path: Path) -> Any:
    """Return the one document of a YAML file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def kustomized(directory: Path) -> list[dict[str, Any]]:
    """Return the objects of a kustomization: what of Kustomize is used here, and no more."""
    content = loaded(directory / "kustomization.yaml")
    known = {"apiVersion", "kind", "namespace", "resources", "images"}
    known |= {"generatorOptions", "configMapGenerator"}
    assert content.keys() <= known
    found = [*_resources(directory, content), *_config_maps(directory, content)]
    for thing in found:
        if "namespace" in content and thing["kind"] != "Namespace":
            thing["metadata"]["namespace"] = content["namespace"]
    for image in content.get("images", []):
        for container in (c for thing in found for c in containers(thing)):
            if container["image"] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"
    return found


def _resources(directory: Path, content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in content.get("resources", []):
        path = directory / name
        if path.is_dir():
            yield from kustomized(path)
        else:
            yield from yaml.safe_load_all(path.read_text(encoding="utf-8"))


def _config_maps(directory: Path, content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    options = content.get("generatorOptions", {})
    for generator in content.get("configMapGenerator", []):
        named = {key: options[key] for key in ("labels", "annotations") if key in options}
        files = {name: (directory / name).read_text("utf-8") for name in generator["files"]}
        yield {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": generator["name"], **copy.deepcopy(named)},
            "data": files,
        }


def pod(thing: dict[str, Any]) -> dict[str, Any]:
    """Return the template of the pods that an object makes, empty if it makes none."""
    return thing.get("spec", {}).get("template", {})  # type: ignore[no-any-return]


def containers(thing: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the containers of an object, those that start first included."""
    spec = pod(thing).get("spec", {})
    return [*spec.get("initContainers", []), *spec.get("containers", [])]


def only(things: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Return the one object of a kind."""
    found = [thing for thing in things if thing["kind"] == kind]
    assert len(found) == 1
    return found[0]
