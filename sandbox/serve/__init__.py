"""The sandbox as an HTTP server over one pool. Needs the extra ``serve``; nothing else of the sandbox does.

    request ──▶ Guard: token, place, body within bounds ──▶ a route ──▶ Pool ──▶ JSON
                   └─▶ every error as one JSON object with its status

consumes: requests of clients          produces: judgements
waits for: bodies, the pool            woken by: either, a client that leaves, SIGTERM
"""
