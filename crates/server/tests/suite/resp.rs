//! The RESP door: replies, versions, pipelines, bounds and the arithmetic of redis-cell.

use crate::resp_fixture::{RULES, RespFixture, START_US, checked, integers};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tollgate_limiter::{Clock, FailureSettings, Limiter, MemoryStore};
use tollgate_listen::ServeOptions;
use tollgate_redis::{RedisSettings, RedisStore};
use tollgate_server::RespDoor;
use tollgate_testbed::{PATIENCE, RedisServer};

const SECOND_US: u64 = 1_000_000;

#[tokio::test]
async fn throttle_replies_as_redis_cell_documents() {
    let door = RespFixture::plain().await;
    let mut client = door.connect().await;
    let throttle = ["CL.THROTTLE", "user123", "15", "30", "60"];
    client.ask(&throttle, &integers([0, 16, 15, -1, 2])).await;
    client.ask(&["cl.throttle", "user123", "15", "30", "60", "15"], &integers([0, 16, 0, -1, 32])).await;
    client.ask(&throttle, &integers([1, 16, 0, 2, 32])).await;
    client.ask(&["CL.THROTTLE", "user123", "15", "30", "60", "0"], &integers([0, 16, 0, -1, 32])).await;
    client.ask(&["CL.THROTTLE", "user123", "15", "30", "60", "17"], &integers([1, 16, 0, -1, 32])).await;
    door.clock.advance_us(1_500_000);
    client.ask(&throttle, &integers([1, 16, 0, 1, 31])).await;
    client.ask(&["CL.THROTTLE", "user123", "15", "30", "60", "-3"], &integers([0, 16, 3, -1, 25])).await;
    client.ask(&["CL.THROTTLE", "user123", "15", "30", "60", "-99"], &integers([0, 16, 16, -1, 0])).await;
    client
        .ask(
            &["CL.THROTTLE", "user123", "15", "30"],
            "-ERR usage: CL.THROTTLE key max_burst count period [quantity]\r\n",
        )
        .await;
    client.ask(&["CL.THROTTLE", "k", "4294967296", "1", "1"], "-ERR 4294967297 is too large\r\n").await;
    client
        .ask(
            &["CL.THROTTLE", "k", "4294967294", "4000000007", "999983"],
            "-ERR a capacity of 4294967295 with this rate cannot be counted exactly\r\n",
        )
        .await;
    client.ask(&["CL.THROTTLE", "", "0", "1", "1"], &integers([0, 1, 0, -1, 1])).await;
}

/// The documented algorithm of redis-cell: a theoretical arrival time. Times are in parts of a microsecond, as many as the
/// count, so that the emission interval is a whole number.
struct CellModel {
    limit: i128,
    count: i128,
    interval: i128,
    arrival: i128,
}

impl CellModel {
    fn throttle(&mut self, now_us: u64, quantity: i128) -> [i64; 5] {
        let now = i128::from(now_us) * self.count;
        let tolerance = self.interval * self.limit;
        let increment = self.interval * quantity;
        let arrival = self.arrival.max(now);
        let new_arrival = arrival + increment;
        let diff = now - (new_arrival - tolerance);
        let is_limited = diff < 0;
        let (mut retry, ttl) = (None, if is_limited { arrival - now } else { new_arrival - now });
        if is_limited {
            retry = (increment <= tolerance).then_some(-diff);
        } else {
            self.arrival = new_arrival;
        }
        let remaining = (tolerance - ttl) / self.interval;
        let seconds = |time: i128| {
            // A wait is promised in whole microseconds.
            let us = (time + self.count - 1) / self.count;
            (us / 1_000_000 + i128::from(us % 1_000_000 >= 1_000)) as i64
        };
        [is_limited.into(), self.limit as i64, remaining as i64, retry.map_or(-1, seconds), seconds(ttl)]
    }
}

#[tokio::test]
async fn throttle_decides_as_the_model_of_redis_cell() {
    let door = RespFixture::plain().await;
    let mut client = door.connect().await;
    let mut rng = fastrand::Rng::with_seed(5);
    let mut now_us = START_US;
    let mut models = Vec::new();
    for (index, (burst, count, period)) in
        [(0, 1, 1), (15, 30, 60), (4, 10, 1), (99, 7, 3), (2, 1, 86_400), (1_000, 1_000, 60), (0, 3, 1)]
            .into_iter()
            .enumerate()
    {
        let model =
            CellModel { limit: burst + 1, count, interval: period * i128::from(SECOND_US), arrival: 0 };
        models.push((format!("key{index}"), burst.to_string(), count.to_string(), period.to_string(), model));
    }
    let mut limited = 0;
    for step in 0..4_000 {
        let pause_us =
            *rng.choice(&[0, 0, 0, 1, 999, 1_000, 33_333, 100_000, 333_334, 1_000_000, 2_500_000]).unwrap();
        door.clock.advance_us(pause_us);
        now_us += pause_us;
        let index = rng.usize(..models.len());
        let (key, burst, count, period, model) = &mut models[index];
        let quantity = *rng.choice(&[0, 1, 1, 1, 2, 5, 40]).unwrap();
        let expected = model.throttle(now_us, quantity);
        limited += expected[0];
        let words = [
            "CL.THROTTLE",
            key.as_str(),
            burst.as_str(),
            count.as_str(),
            period.as_str(),
            &quantity.to_string(),
        ];
        let mut bytes = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| bytes += &format!("${}\r\n{word}\r\n", word.len()));
        client.send(bytes.as_bytes()).await;
        let expected = integers(expected);
        let mut reply = vec![0; expected.len()];
        client.0.read_exact(&mut reply).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&reply), expected, "step {step}: {words:?}");
    }
    assert!((500..3_500).contains(&limited), "{limited}");
}

#[tokio::test]
async fn rules_decide_checks() {
    let door = RespFixture::plain().await;
    let mut client = door.connect().await;
    let orders = Some("orders");
    let check = ["TOLLGATE.CHECK", "sk_1", "/v1/orders"];
    client.ask(&check, &checked([0, 3, 2, -1, 20], orders)).await;
    client
        .ask(&["tollgate.check", "sk_1", "/v1//orders?page=2", "2"], &checked([0, 3, 0, -1, 60], orders))
        .await;
    client.ask(&check, &checked([1, 3, 0, 20, 60], orders)).await;
    client.ask(&["TOLLGATE.CHECK", "sk_1", "/v1/orders", "0"], &checked([1, 3, 0, 20, 60], orders)).await;
    client.ask(&["TOLLGATE.CHECK", "sk_1", "/v1/orders", "-1"], &checked([0, 3, 1, -1, 40], orders)).await;
    client.ask(&["TOLLGATE.CHECK", "sk_1", "/v1/orders", "0"], &checked([0, 3, 1, -1, 40], orders)).await;
    client.ask(&["TOLLGATE.CHECK", "sk_1", "/other"], &checked([0, -1, -1, -1, 0], None)).await;
    client.ask(&["TOLLGATE.CHECK", "sk_internal_1", "/v1/orders"], &checked([0, -1, -1, -1, 0], None)).await;
    client.ask(&["TOLLGATE.CHECK", "sk_bad", "/v1/orders"], &checked([1, -1, -1, -1, 0], None)).await;
    client
        .ask(
            &["TOLLGATE.CHECK", "sk_1", "/v1/orders", "4"],
            "-ERR a cost of 4 can never pass: rule `orders` holds at most 3\r\n",
        )
        .await;
    client
        .ask(
            &["TOLLGATE.CHECK", "sk_1", "/v1/orders", "x"],
            "-ERR the cost is not an integer or out of range\r\n",
        )
        .await;
    client.ask(&["TOLLGATE.CHECK", "", "/"], "-ERR the key is empty\r\n").await;
    client.ask(&["TOLLGATE.CHECK", "sk_1"], "-ERR usage: TOLLGATE.CHECK key endpoint [cost]\r\n").await;
    client
        .ask(
            &["TOLLGATE.CHECK", "sk_1", "/v1/slots"],
            "-ERR rule `slots` counts requests in flight, and this door does not see when they end\r\n",
        )
        .await;
    client.ask(&["HELLO", "3"], "%7\r\n$6\r\nserver\r\n").await;
    let mut hello = vec![0; 256];
    let _ = timeout(Duration::from_secs(1), client.0.read(&mut hello)).await;
    client
        .ask(
            &["TOLLGATE.CHECK", "sk_1", "/other"],
            &checked([0, -1, -1, -1, 0], None).replace("$-1\r\n", "_\r\n"),
        )
        .await;
}

/// `CL.THROTTLE` drops less than a millisecond, as redis-cell does. A check does not: a client that comes back after the seconds
/// that it was told is admitted.
#[tokio::test]
async fn seconds_of_checks_are_rounded_up() {
    let door = RespFixture::plain().await;
    let mut client = door.connect().await;
    let orders = Some("orders");
    let check = ["TOLLGATE.CHECK", "sk_1", "/v1/orders"];
    client.ask(&["TOLLGATE.CHECK", "sk_1", "/v1/orders", "3"], &checked([0, 3, 0, -1, 60], orders)).await;
    // A token comes after 20 s, and all of them are there after 60.
    for (at_us, wait, reset) in [
        (1, 20, 60),
        (500_000, 20, 60),
        (999_500, 20, 60),
        (1_000_000, 19, 59),
        (1_000_001, 19, 59),
        (19_000_000, 1, 41),
        (19_999_500, 1, 41),
        (19_999_999, 1, 41),
    ] {
        door.clock.set_us(START_US + at_us);
        client.ask(&check, &checked([1, 3, 0, wait, reset], orders)).await;
    }
    door.clock.set_us(START_US + 20 * SECOND_US);
    client.ask(&check, &checked([0, 3, 0, -1, 60], orders)).await;
}

#[tokio::test]
async fn a_pipeline_is_answered_in_order() {
    let door = RespFixture::plain().await;
    let mut client = door.connect().await;
    // More than the buffers of one read and one write, in parts that end anywhere.
    let (mut sent, mut expected) = (Vec::new(), String::new());
    for number in 0..6_000 {
        let word = format!("n{number}");
        sent.extend(format!("*2\r\n$4\r\nECHO\r\n${}\r\n{word}\r\n", word.len()).into_bytes());
        expected += &format!("${}\r\n{word}\r\n", word.len());
        if number % 3 == 0 {
            sent.extend(b"CL.THROTTLE pipeline 99 1 3600\r\n");
            let spent = (number / 3 + 1).min(100);
            expected += &match number / 3 < 100 {
                true => integers([0, 100, 100 - spent, -1, spent * 3_600]),
                false => integers([1, 100, 0, 3_600, 360_000]),
            };
        }
    }
    let (mut reader, mut writer) = client.0.split();
    let write = async {
        for part in sent.chunks(7_919) {
            writer.write_all(part).await.unwrap();
        }
    };
    let mut replies = vec![0; expected.len()];
    let (_, read) = tokio::join!(write, timeout(PATIENCE, reader.read_exact(&mut replies)));
    read.unwrap().unwrap();
    assert!(replies == expected.as_bytes());
}

#[tokio::test]
async fn commands_of_clients_are_answered() {
    let door = RespFixture::plain().await;
    let mut client = door.connect().await;
    client.send(b"\r\nPING\r\n").await;
    client.expect("+PONG\r\n").await;
    client.ask(&["PING", "hi"], "$2\r\nhi\r\n").await;
    client.ask(&["ECHO", ""], "$0\r\n\r\n").await;
    client.ask(&["SELECT", "0"], "+OK\r\n").await;
    client.ask(&["SELECT", "1"], "-ERR there is only database 0\r\n").await;
    client.ask(&["CLIENT", "SETINFO", "LIB-NAME", "x"], "+OK\r\n").await;
    client.ask(&["CLIENT", "GETNAME"], "$-1\r\n").await;
    client.ask(&["CLIENT", "SETNAME", "worker"], "+OK\r\n").await;
    client.ask(&["CLIENT", "GETNAME"], "$6\r\nworker\r\n").await;
    client.ask(&["CLIENT", "SETNAME", "a b"], "-ERR the name of a client must not have spaces\r\n").await;
    client.ask(&["COMMAND", "COUNT"], ":14\r\n").await;
    client.ask(&["COMMAND", "DOCS"], "*0\r\n").await;
    client
        .ask(
            &["COMMAND", "INFO", "cl.throttle", "get"],
            "*2\r\n*10\r\n$11\r\ncl.throttle\r\n:-5\r\n*1\r\n+write\r\n:1\r\n:1\r\n:1\r\n*0\r\n*0\r\n*0\r\n*0\r\n$-1\r\n",
        )
        .await;
    client.ask(&["CONFIG", "GET", "save"], "*0\r\n").await;
    client.ask(&["AUTH", "x"], "-ERR AUTH called without any password").await;
    client.send(b"").await;
    let mut other = door.connect().await;
    other.ask(&["GET", "x"], "-ERR unknown command 'GET'\r\n").await;
    other.ask(&["PING", "a", "b"], "-ERR wrong number of arguments for 'ping' command\r\n").await;
    other.ask(&["ECHO"], "-ERR wrong number of arguments for 'echo' command\r\n").await;
    other.ask(&["HELLO", "4"], "-NOPROTO unsupported protocol version\r\n").await;
    other.ask(&["HELLO", "2", "SETNAME"], "-ERR syntax error in HELLO option\r\n").await;
    other.ask(&["RESET"], "+RESET\r\n").await;
    other.ask(&["QUIT"], "+OK\r\n").await;
    assert_eq!(other.rest().await, "");
}

#[tokio::test]
async fn a_password_is_needed_if_there_is_one() {
    let door = RespFixture::open(Some("secret"), RespDoor::default_options()).await;
    let mut client = door.connect().await;
    for command in
        [&["PING"][..], &["CL.THROTTLE", "k", "1", "1", "1"], &["INFO"], &["TOLLGATE.CHECK", "k", "/"]]
    {
        client.ask(command, "-NOAUTH Authentication required.\r\n").await;
    }
    for command in [&["AUTH", "secre"][..], &["AUTH", "secret2"], &["AUTH", ""], &["AUTH", "other", "secret"]]
    {
        client.ask(command, "-WRONGPASS invalid username-password pair or user is disabled.\r\n").await;
    }
    client.ask(&["HELLO", "3", "AUTH", "default", "wrong"], "-WRONGPASS invalid").await;
    let mut client = door.connect().await;
    client.ask(&["AUTH", "secret"], "+OK\r\n").await;
    client.ask(&["PING"], "+PONG\r\n").await;
    client.ask(&["RESET"], "+RESET\r\n").await;
    client.ask(&["PING"], "-NOAUTH Authentication required.\r\n").await;
    client.ask(&["AUTH", "default", "secret"], "+OK\r\n").await;
    client.ask(&["CL.THROTTLE", "k", "0", "1", "1"], &integers([0, 1, 0, -1, 1])).await;
    let mut client = door.connect().await;
    client.ask(&["HELLO", "3", "AUTH", "default", "secret", "SETNAME", "me"], "%7\r\n").await;
}

#[tokio::test]
async fn malformed_frames_close_the_connection_with_an_error() {
    let door = RespFixture::plain().await;
    for (bytes, error) in [
        (b"*1\r\n$999999999\r\n".as_slice(), "invalid bulk length"),
        (b"*1000000\r\n", "invalid multibulk length"),
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (b"GET 'x\r\n", "unbalanced quotes in request"),
        (&[b'x'; 20_000], "too big inline request"),
    ] {
        let mut client = door.connect().await;
        client.ask(&["PING"], "+PONG\r\n").await;
        client.send(bytes).await;
        assert_eq!(client.rest().await, format!("-ERR Protocol error: {error}\r\n"));
    }
    let mut client = door.connect().await;
    client.send(b"PING\r\n*x\r\nPING\r\n").await;
    let rest = client.rest().await;
    assert_eq!(
        rest, "+PONG\r\n-ERR Protocol error: invalid multibulk length\r\n",
        "the commands before it count"
    );
}

/// A page in a browser may make it post anywhere, with a body of its choice.
#[tokio::test]
async fn an_http_request_is_not_read_as_commands() {
    let door = RespFixture::plain().await;
    for head in ["POST / HTTP/1.1\r\nHost: localhost\r\n", "PUT / HTTP/1.1\r\nHOST: localhost\r\n"] {
        let mut client = door.connect().await;
        client.send(format!("{head}\r\nCL.THROTTLE victim 0 1 3600\r\n").as_bytes()).await;
        let rest = client.rest().await;
        assert!(!rest.contains("*5"), "{rest}");
    }
    let mut client = door.connect().await;
    client.ask(&["CL.THROTTLE", "victim", "0", "1", "3600"], &integers([0, 1, 0, -1, 3_600])).await;
}

#[tokio::test]
async fn slow_and_idle_connections_are_closed() {
    let short = Duration::from_millis(50);
    let options = ServeOptions { head_time: short, idle_time: short, ..RespDoor::default_options() };
    let door = RespFixture::open(None, options).await;
    let idle = door.connect().await;
    let mut slow = door.connect().await;
    slow.send(b"*1\r\n$4\r\nPI").await;
    assert_eq!([idle.rest().await, slow.rest().await], ["", ""]);
    let options = ServeOptions { idle_time: PATIENCE, ..options };
    let door = RespFixture::open(None, options).await;
    let mut slow = door.connect().await;
    slow.send(b"*1\r\n$4\r\nPI").await;
    assert_eq!(slow.rest().await, "", "a command that has begun has to end");
    // Also if its bytes come one by one.
    let mut slow = door.connect().await;
    let endless = async {
        slow.send(b"*1\r\n$400\r\n").await;
        while slow.0.write_all(b"x").await.is_ok() {
            tokio::time::sleep(short / 10).await;
        }
    };
    tokio::time::timeout(PATIENCE, endless).await.expect("the connection is closed");
}

#[tokio::test]
async fn a_drain_closes_idle_connections_at_once() {
    let mut door = RespFixture::plain().await;
    let mut client = door.connect().await;
    client.ask(&["PING"], "+PONG\r\n").await;
    let stop = door.stop.take().unwrap();
    stop.send(()).unwrap();
    assert_eq!(client.rest().await, "");
    assert_eq!(timeout(PATIENCE, door.served).await.unwrap().unwrap(), 0, "no connection was cut");
    assert!(TcpStream::connect(door.address).await.is_err());
}

/// Two doors share a Redis: a limit is one limit, a pipeline is answered in order, and looking sees what was spent before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doors_share_a_store() {
    let server = RedisServer::start(&[]);
    let mut doors = Vec::new();
    for _ in 0..2 {
        let settings = RedisSettings { timeout: PATIENCE, ..RedisSettings::default() };
        let store =
            RedisStore::open(&server.url().parse().unwrap(), settings, Clock::system()).await.unwrap();
        let limiter = Limiter::new(MemoryStore::new(16 << 20), Clock::system())
            .sharing(store.shared_store(), FailureSettings::default());
        doors.push((RespFixture::of(limiter, RULES).await, store));
    }
    let mut admitted = 0;
    for (door, _) in &doors {
        let mut client = door.connect().await;
        let mut sent = Vec::new();
        for _ in 0..40 {
            sent.extend(b"CL.THROTTLE shared 49 1 36000\r\n");
        }
        sent.extend(b"CL.THROTTLE shared 49 1 36000 0\r\nECHO end\r\n");
        client.send(&sent).await;
        let mut replies = String::new();
        while !replies.ends_with("$3\r\nend\r\n") {
            let mut part = vec![0; 4_096];
            let length = timeout(PATIENCE, client.0.read(&mut part)).await.unwrap().unwrap();
            assert!(length > 0, "{replies}");
            replies += &String::from_utf8_lossy(&part[..length]);
        }
        let arrays: Vec<&str> = replies.split("*5\r\n").skip(1).collect();
        assert_eq!(arrays.len(), 41);
        admitted += arrays[..40].iter().filter(|array| array.starts_with(":0")).count();
        let left = 50 - admitted.min(50);
        assert!(arrays[40].starts_with(&format!(":0\r\n:50\r\n:{left}\r\n")), "{left}: {}", arrays[40]);
    }
    assert_eq!(admitted, 50, "one limit for both, exactly");
    for (_, store) in &doors {
        store.close().await;
    }
}
