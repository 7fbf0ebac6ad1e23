"""HTTP/1.1 in one place: `server` for the API server and the extender, `client` for our client.

Both are bare asyncio protocols on httptools; docs/architecture.md has the comparison with aiohttp.
"""
