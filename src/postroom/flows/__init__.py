"""The library, once: async def over a Driver. Imports no event loop; sync callers `drive` these, async ones await."""
