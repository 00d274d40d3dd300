"""The tests of an exercise: `mean` and a stack. Students never see this file."""

from wasm_kernel_grading import ProbeError, inside, test


@test(probes=["mean([1, 2, 3])", "mean([])"], points=4)
def mean_is_right(usual, empty):
    assert usual == 2, f"mean([1, 2, 3]) is 2, not {usual}"
    return 4 if empty is None else 2  # an empty list was in the text, but is easily missed


@test(
    probes=["s = Stack()\ns.push('a')\ns.push('b')\n[s.pop(), s.pop()]", "Stack().pop()"], points=3
)
def a_stack_gives_back_the_last_first(popped, empty):
    assert popped == ["b", "a"], f"it gave back {popped}"
    assert isinstance(empty, ProbeError), "an empty stack has nothing to give"
    assert empty.name == "IndexError", f"an empty stack raises an IndexError, not {empty.name}"


@test(probes=["mean(list(range(100_000)))"], points=2, hidden=True)
def mean_is_quick(answer):
    assert answer == 49999.5


@inside(points=1)
def the_stack_has_a_docstring():
    assert Stack.__doc__
