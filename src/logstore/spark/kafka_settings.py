"""
Names of settings of Kafka's clients: ``kafka.`` before one of them is accepted, and means nothing.

A job that moves over from Spark's Kafka connector brings them; there is no connection to configure.

Source: Kafka ``ConsumerConfig``, ``ProducerConfig``, ``CommonClientConfigs``, ``SslConfigs``,
``SaslConfigs``.
"""

from __future__ import annotations

from typing import Final

_NAMES: Final = """
acks allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter batch.size
buffer.memory check.crcs client.dns.lookup client.id client.rack compression.gzip.level
compression.lz4.level compression.type compression.zstd.level config.providers
connections.max.idle.ms default.api.timeout.ms delivery.timeout.ms enable.idempotence
enable.metrics.push exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes
group.id group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms
internal.throw.on.fetch.stable.offset.unsupported linger.ms max.block.ms
max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms
max.poll.records max.request.size metadata.max.age.ms metadata.max.idle.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters
metrics.num.samples metrics.recording.level metrics.sample.window.ms
partition.assignment.strategy partitioner.adaptive.partitioning.enable
partitioner.availability.timeout.ms partitioner.ignore.keys receive.buffer.bytes
reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms
retry.backoff.ms sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms
sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
sasl.mechanism sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience
sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode
sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
sasl.oauthbearer.token.endpoint.url security.protocol security.providers send.buffer.bytes
session.timeout.ms socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
ssl.cipher.suites ssl.enabled.protocols ssl.endpoint.identification.algorithm
ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm
ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation
ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location
ssl.truststore.password ssl.truststore.type transaction.timeout.ms
transaction.two.phase.commit.enable transactional.id
"""
CLIENT_SETTINGS: Final = frozenset(_NAMES.split())

# What the connector refuses, and what to do instead.
REFUSED_SETTINGS: Final = {
    "auto.offset.reset": "set startingOffsets to earliest or latest",
    "key.deserializer": "keys are bytes; decode them with functions of DataFrames",
    "value.deserializer": "values are bytes; decode them with functions of DataFrames",
    "key.serializer": "keys are bytes or strings; encode them with functions of DataFrames",
    "value.serializer": "values are bytes or strings; encode them with functions of DataFrames",
    "enable.auto.commit": "offsets are in the checkpoint of the query",
    "interceptor.classes": "nothing here runs them",
}
