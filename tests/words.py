"""Words that texts of tests and benchmarks are made of."""

WORDS = """
the of and to a in is that it for as with was on by this are be from or which an at not have has but they
their were one all we can there been more if will would about into some than other them time only may these
its new model data corpus token shard train learning rate step loss gradient weight layer attention document
language word furnace iron bloom ore charcoal slag hammer anvil smith bellows heat metal forge river stone
valley winter summer
""".split()  # noqa: SIM905
