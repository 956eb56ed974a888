import time

blocks = []
while len(blocks) < 40:
    blocks.append(bytearray(b"x") * (50 << 20))
    time.sleep(0.02)
