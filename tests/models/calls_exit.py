import argparse
import sys

from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--data")
if parser.parse_args().data is None:
    sys.exit(3)


class Net(nn.Linear):
    pass
