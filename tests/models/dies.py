import os

print("reading the licence")
os._exit(7)
