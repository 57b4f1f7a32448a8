// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pipes instead of pairs of sockets, for LD_PRELOAD.
 *
 * The library of Rust starts programs with a pair of UNIX sockets, through which the child says what
 * went wrong; one way, so a pipe will do. The kernel that is tested has no sockets: they would be a
 * tenth of the time to build it. What needs both ways finds out that there are none.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

int socketpair(int domain, int type, int protocol, int pair[2])
{
	(void)domain;
	(void)protocol;
	return pipe2(pair, type & SOCK_CLOEXEC ? O_CLOEXEC : 0);
}

ssize_t recv(int fd, void *buffer, size_t size, int flags)
{
	(void)flags;
	return read(fd, buffer, size);
}

ssize_t recvfrom(int fd, void *buffer, size_t size, int flags, struct sockaddr *from, socklen_t *length)
{
	(void)from;
	(void)length;
	return recv(fd, buffer, size, flags);
}

ssize_t send(int fd, const void *buffer, size_t size, int flags)
{
	(void)flags;
	return write(fd, buffer, size);
}
