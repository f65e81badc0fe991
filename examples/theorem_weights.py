"""Theorem 5.1's weights, inspected: one layer, looped log2 n times, multiplies n elements of a group."""

import torch

from loopt.tasks.groups import group
from loopt.theory.group_composition import answers, build_group_composition, residual_space

G, n = group("S3"), 8
formal = build_group_composition(G, n)  # the proof's matrices, in its own words
model = formal.model()  # the same function as a LoopedTransformer, an ordinary nn.Module
space = residual_space(G, n)  # which coordinates of the residual stream hold what

print(f"{G.order} elements, words of {n}: plan {formal.plan}, d={formal.d}, d_ff={formal.d_ff}, {formal.n_heads} heads")
print("residual stream:", ", ".join(f"{name} {slot.start}-{slot.stop - 1}" for name, slot in space.slots.items()))

(layer,) = formal.layers
for name, head in zip(("left", "right"), layer.heads, strict=True):
    reads = {part for part, slot in space.slots.items() if head.query[:, slot].any()}
    print(f"head {name}: its query reads {', '.join(reads)}, {int((head.query != 0).sum())} weights are not 0")

word = [G.index(element) for element in ("(1 2)", "(2 3)", "(1 3)", "(1 2)", "(1 2 3)", "(2 3)", "(1 2)", "(1 3)")]
ids = torch.tensor([[G.order, *word]])  # token |G| is #, which stands before a word
names = [*G.elements, "#"]
print("word:", " ".join(names[token] for token in ids[0]))
with torch.no_grad():
    for thought in model.thoughts(ids):  # after each loop, the word is half as long
        held = model.readout(thought.state)[0].argmax(-1)  # [n + 1]
        print(f"after loop {thought.loops}:", " ".join(names[token] for token in held))

words = torch.randint(G.order, (200, n), generator=torch.Generator().manual_seed(0))
products = torch.tensor([G.product(*one) for one in words.tolist()])
print(f"right on {int((answers(model, G, words) == products).sum())} of 200 random words")

with torch.no_grad():  # attention that is not sharp any more: how much of the proof hangs on β?
    model.loop.layers[0].attention.qkv.weight.div_(10)
print(f"with queries, keys and values a tenth: {int((answers(model, G, words) == products).sum())} of 200")
