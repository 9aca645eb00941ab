"""The loader: its samples, their order, broken files and dead workers."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import tensorpost as tp
from loader_files import PHOTOGRAPHS, Late, by_pil, numbered, numbers

RANDOM = int(os.environ.get("TENSORPOST_RANDOM", "1"))
AS_IT_IS = [tp.Resize(8, 8)]


def load(files: Any, transforms: Any = AS_IT_IS, **how: Any) -> tp.Loader:
    how = {"workers": 2, "dtype": "u8", "to": "numpy", "batch": 4} | how
    return tp.Loader(files, transforms, **how)


def until(happens: Callable[[], Any]) -> Any:
    """Returns the first true result of a function, which is called again and again."""
    deadline = time.monotonic() + 60
    while not (found := happens()):
        assert time.monotonic() < deadline
        os.sched_yield()
    return found


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return numbered(tmp_path_factory.mktemp("many"), 300)


@pytest.fixture(scope="module")
def node() -> Iterator[tp.Node]:
    with tp.Node() as node:
        yield node


# ---- Pixels


@pytest.mark.parametrize("path", PHOTOGRAPHS, ids=lambda path: path.name)
@pytest.mark.parametrize(("height", "width"), [(96, 128), (384, 512), (900, 700)])
def test_pixels_are_those_of_pil(node: tp.Node, path: Path, height: int, width: int) -> None:
    with load([path], [tp.Resize(height, width)], node=node) as loader:
        (batch,) = loader
    difference = np.abs(batch.pixels[0].astype(int) - by_pil(path, height, width))
    if path.suffix == ".png":
        assert difference.max() <= 1
    else:
        # Decoders of JPEG round differently, and upsample chroma differently.
        assert difference.mean() < 0.5 and difference.max() <= 12


@pytest.mark.parametrize("filter", ["nearest", "box", "bilinear", "bicubic", "lanczos"])
def test_filters_are_those_of_pil(node: tp.Node, filter: str) -> None:
    path = next(path for path in PHOTOGRAPHS if path.name == "chelsea.png")
    with load([path], [tp.Resize(100, 150, filter)], node=node) as loader:
        (batch,) = loader
    reference = by_pil(path, 100, 150, getattr(Image.Resampling, filter.upper()))
    difference = np.abs(batch.pixels[0].astype(int) - reference)
    assert difference.max() <= 1, difference.max()


def test_floats_are_exactly_those_of_the_formula(node: tp.Node) -> None:
    steps = [tp.Resize(60, 80)]
    normalize = tp.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.7))
    with load(PHOTOGRAPHS, steps, batch=5, node=node) as loader:
        bytes_ = next(iter(loader)).pixels
    with load(PHOTOGRAPHS, [*steps, normalize], dtype="f32", batch=5, node=node) as loader:
        normal = next(iter(loader)).pixels
    with load(PHOTOGRAPHS, steps, dtype="f32", batch=5, node=node) as loader:
        unit = next(iter(loader)).pixels
    expected = bytes_.astype(np.float32) / np.float32(255)
    assert normal.dtype == np.float32 and (unit == expected).all()
    mean, std = (np.array(one, np.float32).reshape(1, 3, 1, 1) for one in (normalize.mean, normalize.std))
    assert (normal == (expected - mean) / std).all()


def test_the_shorter_side_and_the_middle_are_those_of_pil(node: tp.Node) -> None:
    path = next(path for path in PHOTOGRAPHS if path.name == "chelsea.png")  # 451 x 300
    with load([path], [tp.Resize(133), tp.CenterCrop(100, 111)], node=node) as loader:
        (batch,) = loader
    width = int(133 * 451 / 300)
    top, left = round((133 - 100) / 2), round((width - 111) / 2)
    reference = by_pil(path, 133, width)[:, top : top + 100, left : left + 111]
    assert np.abs(batch.pixels[0].astype(int) - reference).max() <= 1


def test_flips_and_crops_go_on_from_each_other(node: tp.Node) -> None:
    path = next(path for path in PHOTOGRAPHS if path.name == "chelsea.png")
    whole = np.asarray(Image.open(path).convert("RGB")).transpose(2, 0, 1)
    flips = [tp.RandomHorizontalFlip(1), tp.RandomVerticalFlip(1)]
    with load([path], [*flips, tp.CenterCrop(101, 50), tp.RandomHorizontalFlip(1)], node=node) as loader:
        (batch,) = loader
    turned = whole[:, ::-1, ::-1]
    top, left = round((300 - 101) / 2), round((451 - 50) / 2)
    assert (batch.pixels[0] == turned[:, top : top + 101, left : left + 50][:, :, ::-1]).all()
    with load([path], [tp.RandomCrop(20, 30)], node=node) as loader:
        (batch,) = loader
    windows = np.lib.stride_tricks.sliding_window_view(whole[0], (20, 30))
    assert (windows == batch.pixels[0, 0]).all(axis=(2, 3)).any()


def test_random_transforms_depend_on_seed_epoch_and_sample_alone(node: tp.Node) -> None:
    steps = [tp.RandomResizedCrop(24, 24), tp.RandomHorizontalFlip()]
    files = PHOTOGRAPHS * 4

    def epochs(seed: int, workers: int, batch: int) -> list[np.ndarray]:
        with load(files, steps, workers=workers, batch=batch, seed=seed, node=node) as loader:
            return [np.concatenate([batch.pixels for batch in loader]) for _ in range(2)]

    first, again, other = epochs(1, 1, 3), epochs(1, 3, 20), epochs(2, 2, 7)
    assert all((one == two).all() for one, two in zip(first, again, strict=True))
    assert (first[0] != first[1]).any() and (first[0] != other[0]).any()
    # The same photograph at another index gets another crop.
    assert (first[0][0] != first[0][5]).any()


def saved(image: Image.Image, format: str, **how: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **how)
    return file.getvalue()


def test_kinds_of_files(tmp_path: Path, node: tp.Node) -> None:
    photograph = Image.open(next(path for path in PHOTOGRAPHS if path.name == "chelsea.png")).resize((64, 48))
    gray16 = (np.asarray(photograph.convert("L")).astype(np.uint16) * 257).astype(np.uint16)
    kinds = {
        "gray.png": saved(photograph.convert("L"), "PNG"),
        "alpha.png": saved(photograph.convert("RGBA"), "PNG"),
        "gray-alpha.png": saved(photograph.convert("LA"), "PNG"),
        "palette.png": saved(photograph.convert("P"), "PNG"),
        "one-bit.png": saved(photograph.convert("1"), "PNG"),
        "gray.jpg": saved(photograph.convert("L"), "JPEG"),
        "progressive.jpg": saved(photograph, "JPEG", progressive=True),
        "whole-chroma.jpg": saved(photograph, "JPEG", subsampling=0),
        "half-chroma.jpg": saved(photograph, "JPEG", subsampling=1),
        "restarts.jpg": saved(photograph, "JPEG", restart_marker_blocks=2),
        "cmyk.jpg": saved(photograph.convert("CMYK"), "JPEG"),
        "a jpeg, in spite of its name.png": saved(photograph, "JPEG"),
    }
    for name, content in kinds.items():
        (tmp_path / name).write_bytes(content)
    paths = [tmp_path / name for name in kinds]
    sixteen = tmp_path / "sixteen.png"
    Image.fromarray(gray16).save(sixteen)
    with load([*paths, sixteen], [tp.Resize(48, 64)], batch=64, node=node) as loader:
        (batch,) = loader
    for path, pixels in zip(paths, batch.pixels, strict=False):
        difference = np.abs(pixels.astype(int) - by_pil(path, 48, 64))
        limit = 0 if path.suffix == ".png" and "jpeg" not in path.name else 16
        assert difference.max() <= limit and difference.mean() < 1.5, (path, difference.max(), difference.mean())
    assert (batch.pixels[-1] == np.asarray(photograph.convert("L"))).all()


# ---- Order and state


def order(count: int, seed: int, epoch: int) -> list[int]:
    """Computes the documented order, in Python."""
    most = (1 << 64) - 1

    def mix(word: int) -> int:
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & most
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB & most
        return word ^ (word >> 31)

    state = 0
    for word in (0, seed, epoch):
        state = mix((state ^ word) + 0x9E3779B97F4A7C15 & most)
    shuffled = list(range(count))
    for last in range(count - 1, 0, -1):
        state = state + 0x9E3779B97F4A7C15 & most
        place = mix(state) * (last + 1) >> 64
        shuffled[last], shuffled[place] = shuffled[place], shuffled[last]
    return shuffled


@given(count=st.integers(0, 400), seed=st.integers(0, (1 << 64) - 1), epoch=st.integers(0, (1 << 64) - 1))
def test_the_order_is_the_documented_one(count: int, seed: int, epoch: int) -> None:
    from tensorpost import _native

    assert _native.Loader.order(count, seed, epoch) == order(count, seed, epoch)


def test_every_epoch_has_every_sample_once(many: list[Path], node: tp.Node) -> None:
    with load(many, shuffle=True, seed=5, batch=7, node=node) as loader:
        assert len(loader) == 43
        for epoch in range(3):
            batches = list(loader)
            assert loader.epoch == epoch and [len(batch) for batch in batches] == [7] * 42 + [6]
            had = [number for batch in batches for number in numbers(batch.pixels)]
            assert had == [index for batch in batches for index in batch.indices] == order(300, 5, epoch)
            assert [path for batch in batches for path in batch.paths] == [str(many[index]) for index in had]
        loader.set_epoch(1)
        assert [index for batch in loader for index in batch.indices] == order(300, 5, 1)
    with load(many, batch=7, drop_last=True, node=node) as loader:
        assert len(loader) == 42
        assert [index for batch in loader for index in batch.indices] == list(range(294))


@settings(max_examples=15 * RANDOM, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_an_epoch_goes_on_with_exactly_what_is_left(many: list[Path], node: tp.Node, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 60), "files")
    how = {"shuffle": data.draw(st.booleans(), "shuffle"), "seed": data.draw(st.integers(0, 9), "seed"), "node": node}
    batches = st.integers(1, 20)
    with load(many[:count], batch=data.draw(batches, "batch"), **how) as loader:
        whole = [[index for batch in loader for index in batch.indices] for _ in range(2)]
        loader.set_epoch(0)
        before, epoch = iter(loader), data.draw(st.integers(0, len(loader)), "batches")
        had = [index for _ in range(epoch) for index in next(before).indices]
        state = loader.state_dict()
    with load(many[:count], batch=data.draw(batches, "another batch"), workers=1, **how) as loader:
        loader.load_state_dict(state)
        rest = [index for batch in loader for index in batch.indices]
        if len(had) == count:
            assert had == whole[0] and rest == whole[1]
        else:
            assert had + rest == whole[0]
            assert [index for batch in loader for index in batch.indices] == whole[1]


def test_a_state_of_other_files_is_refused(many: list[Path], node: tp.Node) -> None:
    with load(many[:10], seed=1, node=node) as loader:
        state = loader.state_dict()
        assert loader.load_state_dict(state) is None
        for wrong, said in (({}, "no state"), ({**state, "seed": 2}, "seed was 2, and is 1"), ({**state, "position": 11}, "position")):
            with pytest.raises(tp.LoaderError, match=said):
                loader.load_state_dict(wrong)
    with load(many[1:11], seed=1, node=node) as loader, pytest.raises(tp.LoaderError, match="others, or in another order"):
        loader.load_state_dict(state)


def test_folders_are_classes(tmp_path: Path, many: list[Path], node: tp.Node) -> None:
    for number, name in enumerate(["b/1.png", "a/deeper/2.PNG", "a/3.png", "a/notes.txt", "c/4.png", "outside.png"]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(many[number], tmp_path / name)
    with load(tmp_path, node=node) as loader:
        assert loader.classes == ["a", "b", "c"]
        ((pixels, labels),) = loader
    assert numbers(pixels) == [2, 1, 0, 4] and labels.tolist() == [0, 0, 1, 2]
    with load(tmp_path / "a" / "deeper", node=node) as loader:
        (batch,) = loader
    assert numbers(batch.pixels) == [1] and batch.labels is None and loader.classes == []
    with load(many[:4], labels=lambda path: int(Path(path).stem) * 2, node=node) as loader:
        (batch,) = loader
    assert batch.labels.tolist() == [0, 2, 4, 6]


def test_hidden_folders_are_no_classes_and_hidden_files_no_samples(tmp_path: Path, many: list[Path], node: tp.Node) -> None:
    names = ["a/1.png", ".git/2.png", "b/3.png", "a/.ipynb_checkpoints/4.png", ".ipynb_checkpoints/5.png", "a/._1.png"]
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(many[number], tmp_path / name)
    with load(tmp_path, node=node) as loader:
        assert loader.classes == ["a", "b"] and loader.labels == [0, 1]
        assert [Path(path).name for path in loader.paths] == ["1.png", "3.png"]


def test_a_folder_that_links_lead_to_twice_is_named(tmp_path: Path, many: list[Path], node: tp.Node) -> None:
    for number, name in enumerate(["data/cat/1.png", "data/cat/deep/2.png", "data/dog/3.png", "elsewhere/4.png"]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(many[number], tmp_path / name)
    data = tmp_path / "data"
    # A link is followed if it is the only path to a folder.
    (data / "cat" / "more").symlink_to(tmp_path / "elsewhere")
    with load(data, node=node) as loader:
        assert len(loader.paths) == 4 and loader.labels == [0, 0, 0, 1]
    for link, to in [("cat/up", "."), ("cat/self", "cat"), ("dog/other", "cat"), ("ant", "dog"), ("dog/more", "../elsewhere"), ("up", ".")]:
        (data / link).symlink_to(data / to)
        with pytest.raises(tp.LoaderError, match="is by a link the same folder as .*remove the link") as error:
            load(data, node=node)
        assert str(data / link) in str(error.value)
        (data / link).unlink()


def test_as_many_workers_as_the_process_may_use(many: list[Path]) -> None:
    import tensorpost._loader as module

    usable = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(usable)})
        with load(many[:2], workers=None) as loader:
            assert len(loader.processes) == 1
    finally:
        os.sched_setaffinity(0, usable)
    asked = []

    class Counts:
        processors = staticmethod(lambda: 300)
        __file__ = module._native.__file__

        @staticmethod
        def Loader(*given: Any) -> None:
            asked.append(given[8])
            raise tp.SpawnError("as many as that")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_native", Counts)
        with pytest.raises(tp.SpawnError, match="as many as that"):
            load(many[:2], workers=None)
    assert asked == [128]


def test_a_node_without_room_for_the_workers_says_what_to_do(many: list[Path]) -> None:
    with tp.Node(console=False, start_deadline=0.0) as late, pytest.raises(tp.SpawnError, match="2 workers of a loader .*`workers=`"):
        load(many[:2], node=late)


# ---- What goes wrong


def broken_files(folder: Path) -> dict[str, str]:
    """Returns paths, and the errors that they cause."""
    photograph = next(path for path in PHOTOGRAPHS if path.name == "coffee.jpg").read_bytes()
    picture = next(path for path in PHOTOGRAPHS if path.name == "chelsea.png").read_bytes()
    small = saved(Image.new("RGB", (7, 9)), "PNG")
    contents = {
        "short.jpg": (photograph[: len(photograph) // 2], "no good JPEG"),
        "short.png": (picture[: len(picture) // 2], "no good PNG"),
        "changed.png": (picture[:5000] + b"????" + picture[5004:], "no good PNG"),
        "empty.jpg": (b"", "it is empty"),
        "text.jpg": (b"not an image", "neither a JPEG nor a PNG"),
        "head.jpg": (b"\xff\xd8\xff", "no good JPEG"),
        "huge.png": (picture[:16] + b"\x00\x10\x00\x00" * 2 + picture[24:], "PNG"),
        "small.png": (small, "resize first"),
    }
    said = {}
    for name, (content, why) in contents.items():
        (folder / name).write_bytes(content)
        said[str(folder / name)] = why
    (folder / "folder.jpg").mkdir()
    said[str(folder / "folder.jpg")] = "cannot be read: it is a folder, and no file"
    os.mkfifo(folder / "pipe.png")
    said[str(folder / "pipe.png")] = "it is a named pipe, and no file"
    with socket.socket(socket.AF_UNIX) as unread:
        unread.bind(str(folder / "socket.png"))
    said[str(folder / "socket.png")] = "it is a socket, and no file"
    (folder / "zeros.png").symlink_to("/dev/zero")
    said[str(folder / "zeros.png")] = "it is a device, and no file"
    said[str(folder / "missing.jpg")] = "cannot be read"
    return said


def test_a_broken_file_is_named(tmp_path: Path, many: list[Path], node: tp.Node) -> None:
    for path, why in broken_files(tmp_path).items():
        files = [*many[:9], path, *many[9:12]]
        with load(files, [tp.CenterCrop(8, 8)], node=node) as loader:
            batches = iter(loader)
            assert numbers(next(batches).pixels) == [0, 1, 2, 3] and len(next(batches)) == 4
            with pytest.raises(tp.LoaderError, match=why) as raised:
                next(batches)
            assert path in str(raised.value) and 'on_error="skip"' in str(raised.value)
            with pytest.raises(StopIteration):
                next(batches)


def test_broken_files_are_left_out(tmp_path: Path, many: list[Path], node: tp.Node) -> None:
    said = broken_files(tmp_path)
    bad = list(said)
    files = [bad[0], *many[:3], *bad[1:7], many[3], bad[7], *bad[8:], many[4]]
    with load(files, [tp.CenterCrop(8, 8)], on_error="skip", labels=range(len(files)), node=node) as loader:
        batches = list(loader)
        assert [numbers(batch.pixels) for batch in batches] == [[0, 1, 2], [3], [4]]
        assert [batch.labels.tolist() for batch in batches] == [[1, 2, 3], [10], [len(files) - 1]]
        # All of the second four are broken.
        assert [[one.path for one in batch.broken] for batch in batches] == [bad[:1], bad[1:8], bad[8:]]
        assert all(said[one.path] in one.why for batch in batches for one in batch.broken)
        assert loader.broken.keys() == said.keys()
        assert loader.state_dict()["position"] == len(files)
    with load(bad, [tp.CenterCrop(8, 8)], on_error="skip", node=node) as loader:
        assert list(loader) == [] and loader.broken.keys() == said.keys()


@pytest.mark.parametrize("workers", [1, 3])
def test_a_dead_worker_is_replaced_and_no_sample_is_lost_or_doubled(many: list[Path], workers: int) -> None:
    with load(many, shuffle=True, seed=3, batch=16, workers=workers, prefetch=64 * 16 * 192) as loader:

        def one_is_killed(first: int) -> bool:
            # A process that was killed a moment ago may still be listed.
            for place in range(workers):
                with contextlib.suppress(ProcessLookupError, IndexError):
                    os.kill(loader.processes[(first + place) % workers], signal.SIGKILL)
                    return True
            return False

        for epoch in range(3):
            had = []
            for number, batch in enumerate(loader):
                had += numbers(batch.pixels)
                if number % 5 == 0:
                    until(lambda: one_is_killed(epoch))
            assert had == order(300, 3, epoch)
        assert not loader.broken
        assert len(until(lambda: loader.processes if len(loader.processes) == workers else [])) == workers


def test_a_file_that_kills_its_workers_is_found_out(tmp_path: Path, many: list[Path]) -> None:
    late = Late(tmp_path / "deadly.png")
    files = [*many[:5], late.path, *many[5:9]]
    killed = []
    with load(files, on_error="skip", batch=10, workers=1) as loader:

        def kill() -> None:
            while len(killed) < 3:
                until(late.is_wanted)
                killed.append(until(lambda: loader.processes)[0])
                os.kill(killed[-1], signal.SIGKILL)
                until(lambda: killed[-1] not in loader.processes)
                until(late.take)

        killer = threading.Thread(target=kill)
        killer.start()
        (batch,) = loader
        killer.join()
        assert numbers(batch.pixels) == list(range(9)) and len(set(killed)) == 3
        ((index, path, why),) = batch.broken
        assert index == 5 and path == str(late.path) and "3 workers have died over it" in why and "9" in why


def test_batches_are_made_ahead_within_the_budget(tmp_path: Path, many: list[Path], node: tp.Node) -> None:
    late = Late(tmp_path / "late.png")
    with load([*many[:3], late.path], batch=1, workers=1, prefetch=2 * 192, node=node) as loader:
        batches = iter(loader)
        assert numbers(next(batches).pixels) == [0]
        # The second and the third are under way or ready; the fourth has no place.
        assert not late.is_wanted()
        assert numbers(next(batches).pixels) == [1]
        until(late.is_wanted)
        late.give()
        assert numbers(next(batches).pixels) == [2]
        with pytest.raises(tp.LoaderError, match="it is empty"):
            next(batches)


def test_batches_that_are_kept_are_an_error_that_says_so(many: list[Path]) -> None:
    with tp.Node(host_budget=64 << 20) as small:
        loader = load(many, [tp.Resize(512, 512)], batch=16, node=small)  # of 12.6 MB
        kept = []
        with pytest.raises(tp.LoaderError, match="let go of earlier ones"):
            for batch in loader:
                kept.append(batch)
        assert 3 <= len(kept) <= 5
        loader.close()


def test_ctrl_c_ends_a_wait_and_the_epoch_goes_on(tmp_path: Path, many: list[Path], node: tp.Node) -> None:
    late = Late(tmp_path / "late.png")
    with load([late.path, *many[:2]], batch=3, workers=1, node=node) as loader:
        batches = iter(loader)
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        until(late.is_wanted)
        late.give(many[9].read_bytes())
        assert numbers(next(batches).pixels) == [9, 0, 1]


def test_one_iteration_at_a_time(many: list[Path], node: tp.Node) -> None:
    loader = load(many, node=node)
    first = iter(loader)
    next(first)
    second = iter(loader)
    with pytest.raises(tp.LoaderError, match="another iteration"):
        next(first)
    kept = next(second)
    assert loader.epoch == 1 and kept.indices == [0, 1, 2, 3]
    loader.close()
    loader.close()
    with pytest.raises(tp.LoaderError, match="closed"):
        next(second)
    with pytest.raises(tp.LoaderError, match="closed"):
        iter(loader)
    # Batches that were delivered stay, and are the program's own.
    assert numbers(kept.pixels) == [0, 1, 2, 3]
    kept.pixels += 1
    assert kept.pixels[0, 0, 0, 0] == 1


@pytest.mark.parametrize("own", [True, False])
def test_its_workers_end_with_it(many: list[Path], node: tp.Node, own: bool) -> None:
    with load(many, workers=3, node=None if own else node) as loader:
        assert len(next(iter(loader))) == 4
        processes = loader.processes
        assert len(processes) == 3
    for process in processes:
        until(lambda process=process: not os.path.exists(f"/proc/{process}"))


def test_workers_load_nothing_of_python(many: list[Path], node: tp.Node) -> None:
    with load(many, workers=1, node=node) as loader:
        next(iter(loader))
        maps = Path(f"/proc/{loader.processes[0]}/maps").read_text()
    assert "tensorpost/_native" in maps and "numpy" not in maps and "torch" not in maps


@pytest.mark.parametrize(
    ("files", "transforms", "how", "said"),
    [
        ([], AS_IT_IS, {}, "the list of files is empty"),
        ("/nowhere", AS_IT_IS, {}, "/nowhere: the folder cannot be read"),
        (["a.png"], [], {}, "how large a sample is"),
        (["a.png"], [tp.Resize(8)], {}, "how large a sample is"),
        (["a.png"], [tp.Normalize(), *AS_IT_IS], {"dtype": "f32"}, "Normalize comes once, and last"),
        (["a.png"], [*AS_IT_IS, tp.Normalize()], {}, "Normalize makes floats"),
        (["a.png"], [*AS_IT_IS, str], {}, "is no transform of a loader"),
        (["a.png"], AS_IT_IS, {"batch": 0}, "batch is a number from 1 to 65536, and not 0"),
        (["a.png"], AS_IT_IS, {"workers": 129}, "workers is a number from 1 to 128"),
        (["a.png"], AS_IT_IS, {"seed": -1}, "seed is a number"),
        (["a.png"], AS_IT_IS, {"device": "tpu"}, "device is"),
        (["a.png"], AS_IT_IS, {"device": "cuda:0"}, "numpy has no arrays on cuda:0"),
        (["a.png"], AS_IT_IS, {"to": "jax"}, 'to is "torch", "numpy" or "tensor"'),
        (["a.png"], AS_IT_IS, {"dtype": "f16"}, 'dtype is "f32" or "u8"'),
        (["a.png"], AS_IT_IS, {"on_error": "ignore"}, 'on_error is "raise" or "skip"'),
        (["a.png"], AS_IT_IS, {"prefetch": -1}, "prefetch is a number of bytes"),
        (["a.png"], AS_IT_IS, {"labels": [1, 2]}, "2 labels for 1 files"),
        (["a.png", "b.png"], AS_IT_IS, {"labels": [0, 1.9]}, r"labels\[1\] is 1.9, of type float, and a label is an integer"),
        (["a.png", "b.png"], AS_IT_IS, {"labels": ["0", 1]}, r"labels\[0\] is '0', of type str, .* give each class a number"),
        (["a.png"], AS_IT_IS, {"labels": np.array([0.5], np.float32)}, r"labels\[0\] is .*0.5.*, of type numpy.float32, "),
        (["a.png"], AS_IT_IS, {"labels": [float("nan")]}, r"labels\[0\] is nan"),
        (["a.png"], AS_IT_IS, {"labels": [1 << 63]}, r"labels\[0\] is 9223372036854775808, of type int, .* at most 64 bits"),
        (["a.png"], AS_IT_IS, {"labels": lambda path: None}, r"labels\[0\] is None, of type NoneType"),
        (".", AS_IT_IS, {"labels": [1]}, "those of a folder are the folders in it"),
    ],
)
def test_wrong_arguments(files: Any, transforms: Any, how: dict[str, Any], said: str) -> None:
    with pytest.raises(tp.LoaderError, match=said):
        load(files, transforms, **how)


def test_numbers_are_those_of_any_library(many: list[Path], node: tp.Node) -> None:
    made: list[Any] = [tp.Resize(np.int32(1 << 14)), tp.CenterCrop(np.int64(8), np.int16(8))]  # type: ignore[arg-type]
    assert [type(side) for one in made for side in (one.height, one.width)] == [int, type(None), int, int]
    how: dict[str, Any] = {"batch": np.int64(2), "seed": np.uint64(3), "prefetch": np.int32(1 << 20)}
    with load(many[:4], [tp.Resize(np.int32(8), np.uint8(8))], node=node, **how) as loader:
        assert [len(batch) for batch in loader] == [2, 2]
        loader.set_epoch(np.int64(3))
        assert loader.state_dict()["epoch"] == 3
    assert node.empty(np.int64(4), tp.u8).shape == (4,)
    for wrong in (1.5, None):
        with pytest.raises(tp.TensorError, match="is no shape; give a number of elements"):
            node.empty(wrong, tp.u8)  # type: ignore[arg-type]
    for refused in (True, 2.0, "2"):
        with pytest.raises(tp.LoaderError, match="batch is a number from 1 to 65536, and not"):
            load(many[:4], batch=refused, node=node)


def test_labels_are_integers_of_any_library(many: list[Path], node: tp.Node) -> None:
    torch = pytest.importorskip("torch")
    given = [True, np.bool_(False), np.uint8(7), np.int64(-3), torch.tensor(5), torch.tensor(True), np.float32(4), 2**63 - 1]
    with load(many[: len(given)], labels=given, batch=len(given), node=node) as loader:
        assert loader.labels == [1, 0, 7, -3, 5, 1, 4, 2**63 - 1] and {type(label) for label in loader.labels} == {int}
        assert next(iter(loader)).labels.tolist() == loader.labels


def test_wrong_transforms() -> None:
    for wrong in (
        lambda: tp.Resize(0, 8),
        lambda: tp.Resize(8, 8, "cubic"),
        lambda: tp.CenterCrop(8, 1 << 16),
        lambda: tp.RandomResizedCrop(8, 8, scale=(0.5, 0.2)),
        lambda: tp.RandomResizedCrop(8, 8, ratio=(0, 1)),
        lambda: tp.RandomHorizontalFlip(1.5),
        lambda: tp.Normalize((0, 0), (1, 1, 1)),
        lambda: tp.Normalize((0, 0, 0), (1, 0, 1)),
    ):
        with pytest.raises(tp.LoaderError):
            wrong()


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(tp.LoaderError, match="there is no image in this folder"):
        load(tmp_path)


def test_a_tensor_as_it_is(many: list[Path], node: tp.Node) -> None:
    with load(many, to="tensor", labels=[1] * 300, node=node) as loader:
        batch = next(iter(loader))
    assert isinstance(batch.pixels, tp.Tensor) and batch.pixels.shape == (4, 3, 8, 8) and batch.labels == [1] * 4
    assert numbers(batch.pixels.numpy()) == [0, 1, 2, 3]


def test_torch(many: list[Path], node: tp.Node) -> None:
    torch = pytest.importorskip("torch")
    with load(many, [*AS_IT_IS, tp.Normalize()], to="torch", dtype="f32", labels=range(300), node=node) as loader:
        pixels, labels = next(iter(loader))
    assert pixels.dtype == torch.float32 and labels.dtype == torch.int64 and labels.tolist() == [0, 1, 2, 3]
    mean, std = (torch.tensor(one).view(1, 3, 1, 1) for one in (tp.Normalize().mean, tp.Normalize().std))
    bytes_ = torch.tensor([[0, 0, 7], [1, 0, 7], [2, 0, 7], [3, 0, 7]]).view(4, 3, 1, 1).expand(4, 3, 8, 8)
    assert torch.equal(pixels, (bytes_.float() / 255 - mean) / std)
    pixels.add_(1)  # its own
