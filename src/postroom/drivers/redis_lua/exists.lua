-- Is the queue there? `begin.lua` has found out.

return { '' }
