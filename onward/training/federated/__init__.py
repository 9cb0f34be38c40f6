"""Federated learning over training artifacts: clients train on their own data, a server averages.

`local_training` is a client's part, `averaging` the server's. `simulation` runs both in one
process, `flower` as the apps of Flower. A client needs numpy and onnxruntime only.
"""
