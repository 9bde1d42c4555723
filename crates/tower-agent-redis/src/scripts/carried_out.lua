-- Says that a replica has come as far as a barrier.
-- KEYS: answers to the barrier
-- ARGV: 1 replica
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[1], 5000)
return 1
