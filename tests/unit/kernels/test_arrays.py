"""Arrays and tables behave like lists and dicts, compiled and interpreted."""

import random
from types import ModuleType

import pytest

from regraft import kernels
from regraft.kernels import arrays

TWIN = kernels.load_interpreted()["arrays"]


@pytest.mark.parametrize("module", [arrays, TWIN], ids=["in use", "interpreted"])
def test_a_table_is_a_dict(module: ModuleType) -> None:
    choice = random.Random(1)
    table, model = module.Table(), {}
    for _ in range(20_000):
        key = choice.choice(
            [choice.randrange(64), choice.getrandbits(64), choice.randrange(64) << 40]
        )
        if choice.random() < 0.5:
            value = choice.randrange(1 << 31)
            table.put(key, value)
            model[key] = value
        else:
            table.drop(key)
            model.pop(key, None)
        assert table.get(key) == model.get(key, -1)
    for key, value in model.items():
        assert table.get(key) == value


@pytest.mark.parametrize("module", [arrays, TWIN], ids=["in use", "interpreted"])
def test_equal_texts_have_one_number_while_held(module: ModuleType) -> None:
    choice = random.Random(2)
    texts = module.Texts()
    held: dict[bytes, list[int]] = {}
    for _ in range(20_000):
        text = choice.randbytes(choice.choice([0, 1, 1, 2, 8, 9, 30]))[:4] * choice.randint(1, 4)
        numbers = held.setdefault(text, [])
        if choice.random() < 0.55:
            number = texts.add(text)
            assert not numbers or numbers[0] == number
            numbers.append(number)
        elif numbers:
            assert texts.release(numbers.pop()) == (not numbers)
        assert texts.number(text) == (numbers[0] if numbers else -1)
    live = {text: numbers[0] for text, numbers in held.items() if numbers}
    assert len(set(live.values())) == len(live) == texts.count()
    assert texts.size == sum(map(len, live))


@pytest.mark.parametrize("module", [arrays, TWIN], ids=["in use", "interpreted"])
def test_ints_grow(module: ModuleType) -> None:
    ints = module.Ints()
    for value in range(-1000, 1000):
        ints.push(value)
    assert ints.items() == list(range(-1000, 1000))


@pytest.mark.parametrize("module", [arrays, TWIN], ids=["in use", "interpreted"])
def test_a_table_is_a_dict_while_it_grows(module: ModuleType) -> None:
    """A large one moves to its new places bit by bit, and meanwhile keys come and go."""
    choice = random.Random(3)
    table, model = module.Table(), {}
    keys: list[int] = []
    for turn in range(120_000):
        key = choice.getrandbits(64)
        if keys and choice.random() < 0.3:  # an old one: gone, or with another value
            at = choice.randrange(len(keys))
            key, keys[at] = keys[at], keys[-1]
            keys.pop()
        if key in model and choice.random() < 0.7:
            table.drop(key)
            del model[key]
        else:
            table.put(key, turn)
            model[key] = turn
            keys.append(key)
        asked = choice.choice(keys) if keys else key
        assert table.get(key) == model.get(key, -1)
        assert table.get(asked) == model[asked]
        assert table.get(choice.getrandbits(64)) == -1
    assert len(model) > 40_000  # several times doubled
    assert all(table.get(key) == value for key, value in model.items())
    for key in keys:
        table.drop(key)
    assert all(table.get(key) == -1 for key in keys)


@pytest.mark.parametrize("module", [arrays, TWIN], ids=["in use", "interpreted"])
def test_large_arrays_keep_what_was_put_in(module: ModuleType) -> None:
    """From two MiB on an array is pages of its own, and moves with them."""
    several = [module.Ints() for _ in range(3)]
    for value in range(2_400_000):
        several[value % 3].push(value)
    for first, ints in enumerate(several):
        assert ints.items() == list(range(first, 2_400_000, 3))
    ints = module.Ints()
    ints.push(7)
    ints.reserve(5_000_000)  # from small to large at once
    ints.push(8)
    assert ints.items() == [7, 8]
