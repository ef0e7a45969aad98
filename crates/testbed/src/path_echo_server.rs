//! Real web servers that answer with the path of the request as they read it.
//!
//! The body has a line for each reading: the path that the server itself matches, and the paths that programs on it
//! usually derive. The first line is a nonce that identifies the started server.

use crate::ports;
use crate::wait::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// How many ports are tried: another process may take a free port first.
const ATTEMPTS: usize = 3;
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Where Debian installs Tomcat's library.
const TOMCAT: &str = "/usr/share/java/tomcat10-embed-core.jar";

/// A web server, and the readings of the path that it answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebServerProgram {
    /// nginx: its `$uri`.
    Nginx,
    /// Node's `http`: the target, the path of its `URL`, both decoded.
    Node,
    /// Python's `http.server`: the target, decoded and split by `urllib`, and the file that it maps to.
    Python,
    /// A servlet in Tomcat: its servlet path.
    Tomcat,
    /// gunicorn: `PATH_INFO`.
    Gunicorn,
}

/// A web server with its own port and folder. It is stopped when this value is dropped.
#[derive(Debug)]
pub struct PathEchoServer {
    address: SocketAddr,
    child: Child,
    _folder: TempDir,
}

impl PathEchoServer {
    /// Starts a server; panics if it does not answer.
    pub fn start(program: WebServerProgram) -> Self {
        (0..ATTEMPTS)
            .find_map(|_| Self::try_start(program))
            .unwrap_or_else(|| panic!("{program:?} did not start on any of {ATTEMPTS} ports"))
    }

    fn try_start(program: WebServerProgram) -> Option<Self> {
        let port = ports::free();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let folder = TempDir::new().expect("a temporary folder");
        let nonce = format!("server-{:016x}", fastrand::u64(..));
        let mut command = command(program, port, &nonce, folder.path());
        command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| panic!("{program:?} is not installed: {error}"));
        let mut server = Self { address, child, _folder: folder };
        let mut is_up = false;
        wait_until(&format!("{program:?} answers or exits"), || {
            // A server of another process may answer on this port.
            is_up = answers(address, &nonce);
            is_up || server.child.try_wait().expect("a child can be waited for").is_some()
        });
        is_up.then_some(server)
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for PathEchoServer {
    fn drop(&mut self) {
        // SIGTERM instead of SIGKILL, so that gunicorn stops its workers.
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id");
        if kill_process(pid, Signal::TERM).is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

fn command(program: WebServerProgram, port: u16, nonce: &str, folder: &Path) -> Command {
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).expect("a file is written");
    let port_text = port.to_string();
    let mut command;
    match program {
        WebServerProgram::Nginx => {
            write("nginx.conf", &nginx_settings(port, nonce, folder));
            command = Command::new("nginx");
            command.args(["-e", "stderr", "-c"]).arg(folder.join("nginx.conf")).arg("-p").arg(folder);
        }
        WebServerProgram::Node => {
            write("node.js", include_str!("path_echo_server/node.js"));
            command = Command::new("node");
            command.args(["node.js", &port_text, nonce]);
        }
        WebServerProgram::Python => {
            write("python.py", include_str!("path_echo_server/python.py"));
            command = Command::new("python3");
            command.args(["python.py", &port_text, nonce]);
        }
        WebServerProgram::Tomcat => {
            write("Reader.java", include_str!("path_echo_server/Reader.java"));
            command = Command::new("java");
            command.args(["-cp", TOMCAT, "Reader.java", &port_text, nonce]).arg(folder);
        }
        WebServerProgram::Gunicorn => {
            write("wsgi.py", include_str!("path_echo_server/wsgi.py"));
            command = Command::new("gunicorn");
            command.args([
                "--bind",
                &format!("127.0.0.1:{port}"),
                "--worker-class",
                "gthread",
                "--threads",
                "8",
            ]);
            command.args(["--keep-alive", "60", "--no-sendfile", "wsgi:application"]).env("NONCE", nonce);
        }
    }
    command
}

fn nginx_settings(port: u16, nonce: &str, folder: &Path) -> String {
    let folder = folder.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {folder}/{name};"))
        .join(" ");
    format!(
        "daemon off; master_process off; pid {folder}/nginx.pid; error_log /dev/null; events {{}}
http {{
  access_log off; keepalive_requests 1000000; {temporary}
  server {{ listen 127.0.0.1:{port}; location / {{ return 200 \"{nonce}\\n$uri\"; }} }}
}}"
    )
}

/// Whether the server with this nonce answers.
fn answers(address: SocketAddr, nonce: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    let asked = stream
        .set_read_timeout(Some(ANSWER_WITHIN))
        .and_then(|()| stream.write_all(b"GET /ready HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"));
    let mut answer = Vec::new();
    asked.is_ok() && stream.read_to_end(&mut answer).is_ok() && {
        String::from_utf8_lossy(&answer).contains(&format!("{nonce}\n/ready"))
    }
}
