//! Real load balancers and proxies, each with a configuration of the test.

use crate::ports;
use crate::wait::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// How many ports are tried: another process may take a free port first.
const ATTEMPTS: usize = 3;

/// nginx with its own port and folder. It is stopped when this value is dropped.
#[derive(Debug)]
pub struct NginxServer {
    address: SocketAddr,
    child: Child,
    folder: TempDir,
}

impl NginxServer {
    /// Starts nginx with this content of its `http` block, in which `PORT` is its port; panics if it does not start.
    pub fn start(http: &str) -> Self {
        (0..ATTEMPTS).find_map(|_| Self::try_start(http)).expect("nginx starts on one of several ports")
    }

    fn try_start(http: &str) -> Option<Self> {
        let (port, folder) = (ports::free(), TempDir::new().expect("a temporary folder"));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        write_nginx_settings(folder.path(), port, http);
        let mut command = Command::new("nginx");
        command
            .args(["-e", "stderr", "-c"])
            .arg(folder.path().join("nginx.conf"))
            .arg("-p")
            .arg(folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().expect("nginx is installed");
        let mut server = Self { address, child, folder };
        let mut has_ended = false;
        wait_until("nginx listens or exits", || {
            has_ended = server.child.try_wait().expect("a child can be waited for").is_some();
            // The file is written when the port is open.
            has_ended
                || server.folder.path().join("nginx.pid").exists() && TcpStream::connect(address).is_ok()
        });
        (!has_ended).then_some(server)
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Replaces the content of its `http` block. It is in force some time later.
    pub fn reload(&self, http: &str) {
        write_nginx_settings(self.folder.path(), self.address.port(), http);
        kill_process(self.pid(), Signal::HUP).expect("nginx is running");
    }

    fn pid(&self) -> Pid {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id")
    }
}

impl Drop for NginxServer {
    fn drop(&mut self) {
        // Its worker ends with it, unless it is killed.
        if kill_process(self.pid(), Signal::TERM).is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

fn write_nginx_settings(folder: &Path, port: u16, http: &str) {
    let shown = folder.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {shown}/{name};"))
        .join(" ");
    let http = http.replace("PORT", &port.to_string());
    let text = format!(
        "daemon off; worker_processes 1; user root; pid {shown}/nginx.pid; error_log /dev/null;\nevents {{}}\nhttp {{\n\
         access_log off; keepalive_requests 1000000; {temporary}\n{http}\n}}\n"
    );
    fs::write(folder.join("nginx.conf"), text).expect("a file is written");
}

/// Caddy with its own port and folder. It is stopped when this value is dropped.
#[derive(Debug)]
pub struct CaddyServer {
    address: SocketAddr,
    child: Child,
    _folder: TempDir,
}

impl CaddyServer {
    /// Starts Caddy with this Caddyfile, in which `PORT` is its port; panics if it does not start.
    pub fn start(caddyfile: &str) -> Self {
        (0..ATTEMPTS).find_map(|_| Self::try_start(caddyfile)).expect("Caddy starts on one of several ports")
    }

    fn try_start(caddyfile: &str) -> Option<Self> {
        let (port, folder) = (ports::free(), TempDir::new().expect("a temporary folder"));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let settings = folder.path().join("Caddyfile");
        // Several of them on one machine: its admin listener has one port.
        let text = format!("{{\n\tadmin off\n}}\n{caddyfile}").replace("PORT", &port.to_string());
        fs::write(&settings, text).expect("a file is written");
        let log = folder.path().join("caddy.log");
        let mut command = Command::new("caddy");
        command.args(["run", "--adapter", "caddyfile", "--config"]).arg(&settings);
        // It keeps files there.
        command
            .env("HOME", folder.path())
            .env("XDG_DATA_HOME", folder.path())
            .env("XDG_CONFIG_HOME", folder.path());
        let output = fs::File::create(&log).expect("a file is written");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("Caddy cannot be started ({error}); `./check` installs it");
        });
        let mut server = Self { address, child, _folder: folder };
        let mut has_ended = false;
        wait_until("Caddy listens or exits", || {
            has_ended = server.child.try_wait().expect("a child can be waited for").is_some();
            has_ended || TcpStream::connect(address).is_ok()
        });
        if has_ended {
            eprintln!("{}", fs::read_to_string(&log).unwrap_or_default());
        }
        (!has_ended).then_some(server)
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for CaddyServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Envoy with its own port and folder. It is stopped when this value is dropped.
#[derive(Debug)]
pub struct EnvoyServer {
    address: SocketAddr,
    child: Child,
    _folder: TempDir,
}

impl EnvoyServer {
    /// Starts Envoy with this bootstrap configuration, in which `PORT` is its port; panics if it does not start.
    pub fn start(bootstrap: &str) -> Self {
        (0..ATTEMPTS).find_map(|_| Self::try_start(bootstrap)).expect("Envoy starts on one of several ports")
    }

    fn try_start(bootstrap: &str) -> Option<Self> {
        let (port, folder) = (ports::free(), TempDir::new().expect("a temporary folder"));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let settings = folder.path().join("envoy.yaml");
        fs::write(&settings, bootstrap.replace("PORT", &port.to_string())).expect("a file is written");
        let log = folder.path().join("envoy.log");
        let mut command = Command::new(envoy_program());
        // Several of them on one machine: none may take part in a hot restart of another.
        command.arg("-c").arg(&settings).args([
            "--disable-hot-restart",
            "--concurrency",
            "1",
            "-l",
            "warning",
        ]);
        command.arg("--log-path").arg(&log).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("Envoy cannot be started ({error}); `./check` installs it");
        });
        let mut server = Self { address, child, _folder: folder };
        let mut has_ended = false;
        wait_until("Envoy listens or exits", || {
            has_ended = server.child.try_wait().expect("a child can be waited for").is_some();
            has_ended || TcpStream::connect(address).is_ok()
        });
        if has_ended {
            eprintln!("{}", fs::read_to_string(&log).unwrap_or_default());
        }
        (!has_ended).then_some(server)
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for EnvoyServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The virtual environment that `./check` makes, or the program in the path.
fn envoy_program() -> PathBuf {
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/envoy/bin/envoy");
    match std::env::var_os("TOLLGATE_ENVOY") {
        Some(path) => path.into(),
        None if made.exists() => made,
        None => "envoy".into(),
    }
}
