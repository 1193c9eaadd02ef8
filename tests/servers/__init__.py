"""Real servers for tests and benchmarks, from a wheel: nothing is installed by hand, and nothing outlives the run.

`valkey.Server` is one; `cluster.Cluster` and `sentinel.Sentinels` are several of them; `proxy.Proxy` stands in front
and loses things on purpose. Tests ask for the fixtures in `fixtures`; who has no fixtures asks `shared`.
"""
