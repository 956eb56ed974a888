"""What a plan means for the optimisation and the money: pure functions on numbers, each with source and validity.

Rule codes: LR-n learning rate (`batch_rules`, chosen among by `learning_rate`), CB-n critical batch size, Q-n loss laws
(`scaling_laws`), F-n failures. No torch.
"""
