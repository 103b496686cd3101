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
