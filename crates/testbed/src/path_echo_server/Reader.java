// Answers with the path as a servlet in Tomcat reads it, one reading per line.
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import org.apache.catalina.Context;
import org.apache.catalina.connector.Connector;
import org.apache.catalina.startup.Tomcat;

public class Reader {
    public static void main(String[] arguments) throws Exception {
        String nonce = arguments[1];
        Tomcat tomcat = new Tomcat();
        tomcat.setBaseDir(arguments[2]);
        Connector connector = new Connector();
        connector.setPort(Integer.parseInt(arguments[0]));
        connector.setProperty("address", "127.0.0.1");
        connector.setProperty("maxKeepAliveRequests", "-1");
        tomcat.setConnector(connector);
        Context context = tomcat.addContext("", arguments[2]);
        Tomcat.addServlet(context, "reader", new HttpServlet() {
            @Override
            protected void service(HttpServletRequest request, HttpServletResponse response) throws IOException {
                String rest = request.getPathInfo() == null ? "" : request.getPathInfo();
                String text = nonce + "\n" + request.getServletPath() + rest + "\n" + request.getRequestURI();
                byte[] body = text.getBytes(StandardCharsets.UTF_8);
                response.setContentLength(body.length);
                response.getOutputStream().write(body);
            }
        });
        context.addServletMappingDecoded("/", "reader");
        tomcat.start();
        tomcat.getServer().await();
    }
}
