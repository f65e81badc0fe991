"""Theorem 5.1's weights, inspected: one layer, looped log2 n times, multiplies n elements of a group."""

import torch

from loopt.tasks.groups import group
from loopt.theory.group_composition import Constants, answers, build_group_composition, residual_space

G, n = group("S3"), 8
formal = build_group_composition(G, n)  # the proof's matrices, in its own words
model = formal.model()  # the same function as a LoopedTransformer, an ordinary nn.Module
print(f"words of {n} elements of S3: plan {formal.plan}, d={formal.d}, d_ff={formal.d_ff}, {formal.n_heads} heads")

space = residual_space(G, n)  # which coordinates of the residual stream hold what
(layer,) = formal.layers
for number, head in enumerate(layer.heads, start=1):
    reads = [name for name in ("here", "left", "right") if head.query[:, space[name]].any()]
    writes = [name for name in ("left_element", "right_element") if head.output[:, space[name]].any()]
    print(f"head {number} looks for the position that {reads[0]} names, and writes its element into {writes[0]}")

for position in (5, 8):  # their numbers stand in the position embedding as bits ±1, the least significant first
    bits = {name: formal.positions[position, space[name]] > 0 for name in ("here", "left", "right")}
    numbers = [f"{name} = {sum(2**i for i, bit in enumerate(code) if bit)}" for name, code in bits.items()]
    print(f"position {position}: {', '.join(numbers)}")

word = [G.index(element) for element in ("(1 2)", "(2 3)", "(1 3)", "(1 2)", "(1 2 3)", "(2 3)", "(1 2)", "(1 3)")]
ids = torch.tensor([[G.order, *word]])  # token |G| is #, which stands before a word
names = [*G.elements, "#"]
print("word:        ", "  ".join(names[token] for token in ids[0]))
with torch.no_grad():
    for thought in model.thoughts(ids):  # each loop halves the word, and keeps it at the right end
        held = model.readout(thought.state)[0].argmax(-1)  # [n + 1]
        print(f"after loop {thought.loops}:", "  ".join(names[token] for token in held))

words = torch.randint(G.order, (200, n), generator=torch.Generator().manual_seed(0))
products = torch.tensor([G.product(*one) for one in words.tolist()])
print(f"right on {int((answers(model, G, words) == products).sum())} of 200 random words")

blurred = build_group_composition(G, n, Constants(beta=1.0)).model()  # keys a 24th as large: attention is not one-hot
print(f"with β = 1 in the keys: {int((answers(blurred, G, words) == products).sum())} of 200")
