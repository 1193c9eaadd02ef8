-- ARGV 6 the status from now on. Whoever waits must look.

call('HSET', INFO, 'status', ARGV[6], 'updated', exact(NOW))
ring(LIVE, 100)
ring(DEAD, 100)
broadcast = true
finish()
return { '' }
