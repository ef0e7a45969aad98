//! A real nginx with its limits, and a gateway with the rules that are imported from the same configuration: the same
//! arrivals have the same outcomes, request by request.
//!
//! The outcomes do not depend on when exactly a request arrives. Bursts are much shorter than the time of one token, and
//! pauses do not end near a whole number of tokens. A run in which a burst took longer says nothing and is repeated.

use crate::http_client::HttpClient;
use crate::process::{TollgateProcess, run, tollgate};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::Instant;
use tollgate_testbed::{NginxServer, wait_until};

/// One token at `rate=20r/m`.
const TOKEN: Duration = Duration::from_secs(3);
/// Runs that a busy machine may spoil.
const ATTEMPTS: usize = 5;

/// The original and the import of one configuration, in front of one upstream.
struct Pair {
    nginx: NginxServer,
    gateway: TollgateProcess,
    upstream: Arc<HoldingUpstream>,
    _folder: TempDir,
}

/// Answers every request at once, and those for `/hold` never.
struct HoldingUpstream {
    address: SocketAddr,
    held: AtomicUsize,
}

impl HoldingUpstream {
    fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let upstream = Arc::new(Self { address, held: AtomicUsize::new(0) });
        let shared = Arc::clone(&upstream);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.serve(stream));
            }
        });
        upstream
    }

    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream);
        let mut first = String::new();
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap_or(0) > 2 {
            first.push_str(&line);
            line.clear();
        }
        if first.contains(" /hold ") {
            self.held.fetch_add(1, Ordering::SeqCst);
            // Until the other side closes the connection.
            let _ = reader.read(&mut [0]);
            return;
        }
        let answer = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
        let _ = reader.get_mut().write_all(answer.as_bytes());
    }
}

impl Pair {
    /// Starts both with this content of the `http` block, in which `UPSTREAM` is the address of the upstream.
    fn start(http: &str) -> Self {
        let (upstream, folder) = (HoldingUpstream::start(), tempfile::tempdir().unwrap());
        let http = http.replace("UPSTREAM", &upstream.address.to_string());
        let nginx = NginxServer::start(&http);
        let (original, rules) = (folder.path().join("nginx.conf"), folder.path().join("rules.yaml"));
        std::fs::write(&original, format!("events {{}} http {{ {http} }}")).unwrap();
        let imported = run(tollgate(["rules", "import", "nginx"]).arg(&original));
        assert_eq!((imported.code, imported.stderr.as_str()), (Some(0), ""), "{}", imported.stdout);
        std::fs::write(&rules, &imported.stdout).unwrap();
        let checked = run(tollgate(["rules", "check"]).arg(&rules));
        assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""), "{}", imported.stdout);
        let upstream_url = format!("http://{}", upstream.address);
        let mut command =
            tollgate(["gateway", "--gateway-listen", "127.0.0.1:0", "--upstream", &upstream_url]);
        let gateway = TollgateProcess::from(command.arg("--rules").arg(&rules));
        Self { nginx, gateway, upstream, _folder: folder }
    }

    fn addresses(&self) -> [SocketAddr; 2] {
        [self.nginx.address(), self.gateway.address]
    }

    /// Sends the same requests to both, one after the other, and returns which were admitted by each.
    fn play(&self, requests: &[(&str, &str)]) -> [Vec<bool>; 2] {
        self.addresses().map(|address| {
            let outcome = |(target, headers): &(&str, &str)| {
                let host = if headers.contains("Host: ") { "" } else { "Host: test\r\n" };
                let mut client = HttpClient::connect(address);
                client.send(&format!("GET {target} HTTP/1.1\r\n{host}{headers}\r\n"));
                match client.reply().status {
                    200 => true,
                    429 | 503 => false,
                    other => panic!("{target} at {address}: {other}"),
                }
            };
            requests.iter().map(outcome).collect()
        })
    }
}

const CONFIGURATION: &str = "
  geo $limited { default 1; 192.0.2.0/24 0; }
  map $limited $client { 0 ''; 1 $binary_remote_addr; }
  map $http_x_api_key $by_key { '' ''; 'internal' ''; default $http_x_api_key; }
  map $request_method $writes { default ''; POST $binary_remote_addr; }
  limit_req_zone $client zone=burst:1m rate=20r/m;
  limit_req_zone $binary_remote_addr zone=strict:1m rate=20r/m;
  limit_req_zone $by_key zone=keys:1m rate=20r/m;
  limit_req_zone $binary_remote_addr zone=wide:1m rate=20r/m;
  limit_req_zone $binary_remote_addr zone=narrow:1m rate=20r/m;
  limit_req_zone $binary_remote_addr zone=trial:1m rate=20r/m;
  limit_req_zone $writes zone=writes:1m rate=20r/m;
  limit_req_zone $binary_remote_addr$uri zone=paths:1m rate=20r/m;
  limit_req_zone $binary_remote_addr zone=default:1m rate=20r/m;
  limit_req_status 429;
  server {
    listen 127.0.0.1:PORT;
    limit_req zone=default burst=2 nodelay;
    location / { proxy_pass http://UPSTREAM; }
    location /burst { limit_req zone=burst burst=5 nodelay; proxy_pass http://UPSTREAM; }
    location = /strict { limit_req zone=strict; proxy_pass http://UPSTREAM; }
    location /keys { limit_req zone=keys burst=1 nodelay; proxy_pass http://UPSTREAM; }
    location /both { limit_req zone=wide burst=6 nodelay; limit_req zone=narrow burst=3 nodelay; proxy_pass http://UPSTREAM; }
    location /trial { limit_req zone=trial burst=1 nodelay; limit_req_dry_run on; proxy_pass http://UPSTREAM; }
    location /writes { limit_req zone=writes; proxy_pass http://UPSTREAM; }
    location ~ ^/paths/[ab] { limit_req zone=paths burst=1 nodelay; proxy_pass http://UPSTREAM; }
  }
";

/// A burst over every location.
fn burst() -> Vec<(&'static str, &'static str)> {
    let mut requests = Vec::new();
    let mut add = |count, target, headers| requests.extend(std::iter::repeat_n((target, headers), count));
    add(9, "/burst", "");
    add(3, "/strict", "");
    add(3, "/strict/longer", "");
    add(4, "/keys", "");
    add(4, "/keys", "X-Api-Key: one\r\n");
    add(4, "/keys", "X-Api-Key: internal\r\n");
    add(2, "/keys/x", "X-Api-Key: two\r\n");
    add(8, "/both", "");
    add(4, "/trial", "");
    add(3, "/writes", "");
    add(3, "/paths/a", "");
    add(3, "/paths/b", "");
    add(2, "/paths/c", "");
    add(4, "/", "");
    requests
}

/// Bursts and pauses, to both at the same times. `None` if a burst took too long for its outcome to be certain.
fn outcomes() -> Option<[Vec<bool>; 2]> {
    let pair = Pair::start(CONFIGURATION);
    let (start, requests) = (Instant::now(), burst());
    let mut all = [Vec::new(), Vec::new()];
    // A third of a token beyond whole ones, since the start and since the burst before.
    for at in [Duration::ZERO, TOKEN * 7 / 3, TOKEN * 11 / 3] {
        thread::sleep(at.saturating_sub(start.elapsed()));
        for (all, more) in all.iter_mut().zip(pair.play(&requests)) {
            all.extend(more);
        }
        if start.elapsed() > at + TOKEN / 6 {
            return None;
        }
    }
    Some(all)
}

#[test]
fn the_same_arrivals_have_the_same_outcomes() {
    let [nginx, imported] =
        (0..ATTEMPTS).find_map(|_| outcomes()).expect("one of several runs is undisturbed");
    let requests = burst();
    for (index, (original, own)) in nginx.iter().zip(&imported).enumerate() {
        let (round, request) = (index / requests.len(), requests[index % requests.len()]);
        assert_eq!(original, own, "round {round}, request {} {request:?}", index % requests.len());
    }
    let admitted = |round: usize| {
        let outcomes = nginx.iter().skip(round * requests.len()).take(requests.len());
        outcomes.filter(|admitted| **admitted).count()
    };
    // Of the first burst: 6, 1, 3 (of the default), 4, 2, 4, 2, 4, 4, 3, 2, 2, 0 and 0 (of the spent default).
    assert_eq!(admitted(0), 37, "{nginx:?}");
    assert!(admitted(1) < admitted(0) && admitted(2) < admitted(1), "{nginx:?}");
}

/// Without `nodelay` nginx delays requests to the rate and refuses those beyond the burst; the import queues them.
#[test]
fn delayed_requests_wait_in_a_queue() {
    let shaped = || {
        let pair = Pair::start(
            "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/s;
             server { listen 127.0.0.1:PORT; location / { limit_req zone=a burst=4 delay=1; proxy_pass http://UPSTREAM; } }",
        );
        let play = |address: SocketAddr| {
            let start = Instant::now();
            let mut clients: Vec<HttpClient> = (0..7).map(|_| HttpClient::connect(address)).collect();
            clients.iter_mut().for_each(|client| client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n"));
            let sent = start.elapsed();
            let answers = clients
                .into_iter()
                .map(|mut client| thread::spawn(move || (client.reply().status, start.elapsed())));
            let answers: Vec<_> =
                answers.collect::<Vec<_>>().into_iter().map(|one| one.join().unwrap()).collect();
            let mut admitted: Vec<Duration> =
                answers.iter().filter(|(status, _)| *status == 200).map(|(_, at)| *at).collect();
            admitted.sort();
            (sent < Duration::from_millis(300)).then_some(admitted)
        };
        let [nginx, imported] = pair.addresses().map(play);
        Some([nginx?, imported?])
    };
    let both = (0..ATTEMPTS).find_map(|_| shaped()).expect("one of several runs is undisturbed");
    for admitted in both {
        // Two at once, then one a second: the burst is four beyond the first.
        assert_eq!(admitted.len(), 5, "{admitted:?}");
        for (index, at) in admitted.iter().enumerate() {
            let due = Duration::from_secs(index.saturating_sub(1) as u64);
            assert!(*at + Duration::from_millis(300) > due, "request {index} at {at:?}: {admitted:?}");
        }
    }
}

#[test]
fn connections_in_flight_are_limited() {
    let pair = Pair::start(
        "limit_conn_zone $binary_remote_addr zone=a:1m;
         server { listen 127.0.0.1:PORT; location / { limit_conn a 2; proxy_pass http://UPSTREAM; } }",
    );
    for address in pair.addresses() {
        let before = pair.upstream.held.load(Ordering::SeqCst);
        let mut clients = Vec::new();
        for held in 1..=2 {
            let mut client = HttpClient::connect(address);
            client.send("GET /hold HTTP/1.1\r\nHost: test\r\n\r\n");
            wait_until("the upstream holds the request", || {
                pair.upstream.held.load(Ordering::SeqCst) == before + held
            });
            clients.push(client);
        }
        let refused = HttpClient::connect(address).get("/").status;
        assert!(matches!(refused, 429 | 503), "{address}: {refused}");
        assert_eq!(pair.upstream.held.load(Ordering::SeqCst), before + 2);
    }
}
